"""Every manifest, every value set of the chart and the webhook's output against the schemas of Kubernetes 1.29 to 1.37.

An unknown field is an error, and so is a kind that no schema is known for. Custom resources have small schemas of our own.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml
from kubernetes_validate import utils

from sidecar.kube.injection.options import LABEL, Options
from sidecar.kube.injection.review import Reviewer
from tests.kubernetes import pod_shapes
from tests.kubernetes.patching import patched
from tests.kubernetes.rendered import VERSIONS, Json, everything, pods

OWN = yaml.safe_load(Path(__file__).with_name("crd_schemas.yaml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module", autouse=True)
def _schemas_are_read_once():
    # The package reads 4 MB of JSON for each document; the answer is the same.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(utils, "schema_contents", functools.cache(utils.schema_contents))
        yield


def check(document: Json, version: str) -> None:
    """Validate one document; raises for an unknown kind as for an unknown field."""
    own = OWN["kinds"].get(f"{document['apiVersion']} {document['kind']}")
    if own is None:
        kubernetes_validate.validate(document, version, strict=True)
        return
    assert set(document) == {"apiVersion", "kind", "metadata", "spec"}
    jsonschema.validate(document["metadata"], {**OWN["$defs"]["metadata"], "$defs": OWN["$defs"]})
    jsonschema.validate(document["spec"], {**own, "$defs": OWN["$defs"]})
    for metric in document["spec"].get("metrics", []):
        if job := metric["provider"].get("job"):
            whole = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "of-a-metric"}, **job}
            kubernetes_validate.validate(whole, version, strict=True)
    for pod in pods(document):
        whole = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "of-a-template"}, "spec": pod}
        kubernetes_validate.validate(whole, version, strict=True)


def troubles(documents: list[tuple[str, Json]], version: str) -> list[str]:
    """Say what is wrong with these documents; equal ones are looked at once."""
    found, seen = [], set()
    for source, document in documents:
        text = json.dumps(document, sort_keys=True)
        if text in seen:
            continue
        seen.add(text)
        try:
            check(document, version)
        except (jsonschema.ValidationError, kubernetes_validate.SchemaNotFoundError, AssertionError) as error:
            what = getattr(error, "message", str(error))
            found.append(f"{source}: {document['kind']} {document['metadata'].get('name')}: {what}")
    return found


@pytest.mark.parametrize("version", VERSIONS)
def test_every_manifest_is_valid_without_unknown_fields(version: str):
    assert troubles(list(everything()), version) == []


@pytest.mark.parametrize("version", VERSIONS)
def test_every_injected_pod_is_valid_without_unknown_fields(version: str):
    reviewer = Reviewer(Options(image="registry.example.com/warmup-sidecar:0.1.0"), {"A_CACHE": "{live}/a"}, "0.1.0")
    made = []
    for name, pod in pod_shapes.INJECTED.items():
        labelled = pod_shapes.labelled(pod)
        answer = reviewer.answer(pod_shapes.review(labelled))
        assert answer.outcome == "injected", (name, answer.warnings)
        made.append((name, patched(labelled, answer.body)))
    assert troubles(made, version) == []
    assert all(pod["metadata"]["labels"][LABEL] == "true" for _, pod in made)


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "Deploiment"},
        {"apiVersion": "example.com/v1", "kind": "Invention"},
        {"spec": {"progresDeadlineSeconds": 1}},
    ],
    ids=["kind", "custom kind", "field"],
)
def test_what_no_schema_knows_is_found(change: Json):
    [deployment] = [d for source, d in everything() if source == "base" and d["kind"] == "Deployment"]
    broken = {**deployment, **change, "spec": {**deployment["spec"], **change.get("spec", {})}}
    assert len(troubles([("broken", broken)], "1.33")) == 1


def test_a_custom_resource_with_an_unknown_field_is_found():
    [monitor] = [d for source, d in everything() if source == "components/monitoring" and d["kind"] == "PodMonitor"]
    broken = {**monitor, "spec": {**monitor["spec"], "podMetricEndpoints": []}}
    assert len(troubles([("broken", broken)], "1.33")) == 1
