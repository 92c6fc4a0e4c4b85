"""Monitoring as it is shipped: every pod of ours is found by one monitor, and every alert leads to its runbook.

What the alerts say is in test_alerts.py, that the objects are valid in test_schemas.py. No cluster is asked.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.kubernetes.rendered import CHART, K8S, Json, charted, kustomized, loaded, need, run

README = (K8S / "README.md").read_text(encoding="utf-8")
BASE_URL = "https://git.example.com/inference/warmup-sidecar/blob/v0.1.0/"


def anchors(readme: str) -> set[str]:
    """Give the headings as the fragments that GitHub and GitLab make of them."""
    headings = re.findall(r"^#+ (.+)$", readme, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def runbooks(documents: list[Json] | tuple[Json, ...]) -> dict[str, str]:
    [rule] = [document for document in documents if document["kind"] == "PrometheusRule"]
    alerts = [alert for group in rule["spec"]["groups"] for alert in group["rules"]]
    return {alert["alert"]: alert["annotations"]["runbook_url"] for alert in alerts}


def snippet(name: str) -> str:
    """Give the kustomization in the README that has this mark before it."""
    [found] = re.findall(rf"<!-- rendered by the tests: {name} -->\n```yaml\n(.*?)```", README, re.DOTALL)
    return str(found)


def built(kustomization: str, folder: Path) -> list[Json]:
    """Give what kubectl makes of a kustomization that lies in a folder beside k8s/base."""
    shutil.copytree(K8S, folder / "k8s")
    (folder / "k8s" / "mine").mkdir()
    (folder / "k8s" / "mine" / "kustomization.yaml").write_text(kustomization, encoding="utf-8")
    done = run([need("kubectl"), "kustomize", folder / "k8s" / "mine"])
    assert (done.returncode, done.stderr) == (0, "")
    return loaded(done.stdout)


def test_every_alert_leads_to_its_section():
    assert runbooks(kustomized("components/monitoring")) == {
        alert: f"k8s/README.md#{alert.lower()}" for alert in runbooks(kustomized("components/monitoring"))
    }
    assert {url.partition("#")[2] for url in runbooks(kustomized("components/monitoring")).values()} <= anchors(README)


def test_the_readmes_lines_put_an_address_before_every_runbook(tmp_path: Path):
    documents = built(snippet("runbooks"), tmp_path)
    shipped = runbooks(kustomized("components/monitoring"))
    assert runbooks(documents) == {alert: BASE_URL + url for alert, url in shipped.items()}
    assert not any("runbooks" in document["metadata"]["name"] for document in documents)


def test_the_chart_puts_an_address_before_every_runbook():
    words = ["--set", f"monitoring.rules=true,monitoring.runbooks={BASE_URL}"]
    done = run([need("helm4"), "template", "test", CHART, *words])
    assert done.returncode == 0, done.stderr
    shipped = runbooks(charted("hopper"))
    assert shipped == runbooks(kustomized("components/monitoring"))
    assert runbooks(loaded(done.stdout)) == {alert: BASE_URL + url for alert, url in shipped.items()}


@pytest.mark.parametrize("text", ["git.example.com/", "https://git.example.com"])
def test_an_address_that_gives_no_link_is_refused(text: str):
    done = run([need("helm4"), "template", "test", CHART, "--set", f"monitoring.runbooks={text}"])
    assert done.returncode != 0
    assert "runbooks" in done.stderr
