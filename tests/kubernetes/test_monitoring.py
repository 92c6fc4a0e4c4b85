"""Monitoring as it is shipped: every pod of ours is found by one monitor, and every alert leads to its runbook.

What the alerts say is in test_alerts.py, that the objects are valid in test_schemas.py. No cluster is asked.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import yaml

from sidecar import __version__
from sidecar.kube.injection.options import LABEL, from_file
from sidecar.kube.injection.review import Reviewer
from tests.kubernetes.patching import patched
from tests.kubernetes.pod_shapes import review
from tests.kubernetes.rendered import CHART, K8S, Json, charted, containers, kustomized, loaded, need, plain, run

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


# --- what is scraped -----------------------------------------------------------------------------------------------------


def monitors(documents: list[Json] | tuple[Json, ...]) -> list[Json]:
    return [document for document in documents if document["kind"] == "PodMonitor"]


def is_scraped(monitor: Json, pod: Json, namespace: str) -> bool:
    """Say whether a monitor finds a pod, as the operator makes Prometheus discover and relabel: by place, labels, port."""
    spec, metadata = monitor["spec"], pod["metadata"]
    selected = spec.get("namespaceSelector") or {"matchNames": [monitor["metadata"].get("namespace", namespace)]}
    if "any" not in selected and namespace not in selected["matchNames"]:
        return False
    [endpoint] = spec["podMetricsEndpoints"]
    marks = {f"__meta_kubernetes_pod_annotation_{re.sub(r'[^a-zA-Z0-9_]', '_', name)}": value
             for name, value in (metadata.get("annotations") or {}).items()}  # fmt: skip
    for rule in endpoint.get("relabelings", []):
        if not re.fullmatch(rule["regex"], ";".join(marks.get(label, "") for label in rule["sourceLabels"])):
            return False
    # Metrics are where the probes are: in plain HTTP, which the webhook's own port is not.
    probes = [container["readinessProbe"] for container in containers(pod["spec"]) if "readinessProbe" in container]
    ports = {probe["httpGet"]["port"] for probe in probes if "httpGet" in probe}
    return endpoint["port"] in ports and spec["selector"]["matchLabels"].items() <= metadata["labels"].items()


def template_of(documents: list[Json] | tuple[Json, ...]) -> Json:
    [deployment] = [document for document in documents if document["kind"] == "Deployment"]
    template = deployment["spec"]["template"]
    assert isinstance(template, dict)
    return template


def injected_example() -> Json:
    [example] = [document for source, document in plain() if source.endswith("injected/deployment.yaml")]
    pod = {"apiVersion": "v1", "kind": "Pod", **example["spec"]["template"]}
    options = from_file(yaml.safe_load((K8S / "injector" / "base" / "options.yaml").read_text(encoding="utf-8")))
    return patched(pod, Reviewer(options, {}, __version__).answer(review(pod)).body)


PODS = {
    "the base's pod": ("inference", lambda: template_of(kustomized("base"))),
    "an injected pod": ("inference", injected_example),
    "the injector": ("warmup-system", lambda: template_of(kustomized("injector/self-signed"))),
}


@pytest.mark.parametrize("name", PODS)
def test_every_pod_of_ours_is_scraped_by_one_shipped_monitor(name: str):
    namespace, pod = PODS[name]
    shipped = [*monitors(kustomized("components/monitoring")), *monitors(kustomized("injector/monitoring"))]
    assert len(shipped) == 3
    assert len([each for each in shipped if is_scraped(each, pod(), namespace)]) == 1


def test_the_charts_pods_are_scraped_by_one_monitor_even_if_they_ask_for_the_webhook_too():
    pod = template_of(charted("hopper"))
    pod = {**pod, "metadata": {**pod["metadata"], "labels": {**pod["metadata"]["labels"], LABEL: "true"}}}
    assert len([each for each in monitors(charted("hopper")) if is_scraped(each, pod, "inference")]) == 1


def test_the_charts_monitors_of_the_webhook_are_those_of_the_injector():
    shipped = {json.dumps(each["spec"], sort_keys=True) for each in monitors(kustomized("injector/monitoring"))}
    charts = {json.dumps(each["spec"], sort_keys=True) for each in monitors(charted("hopper"))}
    assert shipped < charts
    assert not any(each["metadata"]["name"].endswith("-injected") for each in charted("defaults"))


def test_a_pod_that_the_webhook_left_as_it_was_is_no_target():
    [monitor] = [
        each for each in monitors(kustomized("injector/monitoring")) if "any" in each["spec"]["namespaceSelector"]
    ]
    [example] = [document for source, document in plain() if source.endswith("injected/deployment.yaml")]
    assert is_scraped(monitor, injected_example(), "inference")
    assert not is_scraped(monitor, example["spec"]["template"], "inference")


def test_the_readmes_lines_for_a_cluster_with_the_webhook_alone_bring_all_of_it(tmp_path: Path):
    documents = built(snippet("webhook-monitoring"), tmp_path)
    assert len([each for each in monitors(documents) if is_scraped(each, injected_example(), "inference")]) == 1
    namespace, pod = PODS["the injector"]
    assert len([each for each in monitors(documents) if is_scraped(each, pod(), namespace)]) == 1
    assert {document["metadata"]["namespace"] for document in documents} == {"monitoring"}
    assert {"PrometheusRule", "ConfigMap"} <= {document["kind"] for document in documents}


def test_the_not_scraped_alert_knows_the_containers_by_their_names():
    documents = kustomized("components/monitoring")
    [rule] = [document for document in documents if document["kind"] == "PrometheusRule"]
    [expr] = [
        alert["expr"]
        for group in rule["spec"]["groups"]
        for alert in group["rules"]
        if alert["alert"] == "WarmupNotScraped"
    ]
    scraped = {
        (container["name"], port["name"])
        for _, pod in PODS.values()
        for container in containers(pod()["spec"])
        for port in container.get("ports", [])
        if port["name"] in ("warmup", "probes")
    }
    assert scraped == {("warmup-sidecar", "warmup"), ("injector", "probes")}
    assert 'up{container="warmup-sidecar"} == 0' in expr
    assert 'up{container="injector", endpoint="probes"} == 0' in expr


# --- metrics of processes ------------------------------------------------------------------------------------------------


def test_process_metrics_share_the_pid_namespace_and_nothing_else_does():
    assert template_of(kustomized("components/process-metrics"))["spec"]["shareProcessNamespace"] is True
    assert template_of(charted("hopper"))["spec"]["shareProcessNamespace"] is True
    base = template_of(kustomized("base"))["spec"]
    assert {**base, "shareProcessNamespace": True} == template_of(kustomized("components/process-metrics"))["spec"]
    assert "shareProcessNamespace" not in template_of(charted("defaults"))["spec"]
