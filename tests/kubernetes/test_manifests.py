"""What the manifests in k8s/ promise: valid for each supported Kubernetes, and in step with the code.

No cluster is asked here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from sidecar import __version__
from sidecar.config import Settings, variable
from sidecar.web.app import ENDPOINTS

ROOT = Path(__file__).resolve().parents[2]
BASE = ROOT / "k8s" / "base"

#: Native sidecars are on by default from 1.29; 1.37 is the newest whose schemas are published.
VERSIONS = [f"1.{minor}" for minor in range(29, 38)]


def documents() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in sorted(BASE.glob("*.yaml")):
        if path.name != "kustomization.yaml":
            for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
                yield path.name, document


DOCUMENTS = list(documents())


def by_kind(kind: str) -> dict[str, Any]:
    [found] = [document for _, document in DOCUMENTS if document["kind"] == kind]
    return found


@pytest.fixture
def pod() -> dict[str, Any]:
    spec = by_kind("Deployment")["spec"]["template"]["spec"]
    assert isinstance(spec, dict)
    return spec


@pytest.fixture
def sidecar(pod: dict[str, Any]) -> dict[str, Any]:
    [container] = pod["initContainers"]
    assert isinstance(container, dict)
    return container


@pytest.fixture
def engine(pod: dict[str, Any]) -> dict[str, Any]:
    [container] = pod["containers"]
    assert isinstance(container, dict)
    return container


@pytest.fixture
def settings(sidecar: dict[str, Any]) -> Settings:
    """The settings that the sidecar's container is given."""
    given = {entry["name"].removeprefix("WARMUP_").lower(): entry["value"] for entry in sidecar["env"]}
    return Settings.model_validate(given)


def mounts(container: dict[str, Any]) -> dict[str, str]:
    return {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("name", "document"), DOCUMENTS, ids=[name for name, _ in DOCUMENTS])
def test_a_manifest_is_valid_without_unknown_fields(name: str, document: dict[str, Any], version: str):
    # A kind without a schema raises SchemaNotFoundError; nothing is skipped for being unknown.
    assert kubernetes_validate.validate(document, version, strict=True) == version


def test_a_misspelt_field_is_found_by_this_validation():
    deployment = by_kind("Deployment")
    broken = {**deployment, "spec": {**deployment["spec"], "progresDeadlineSeconds": 1}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, "1.29", strict=True)


def test_the_kustomization_lists_every_manifest():
    kustomization = yaml.safe_load((BASE / "kustomization.yaml").read_text(encoding="utf-8"))
    assert sorted(kustomization["resources"]) == sorted({name for name, _ in DOCUMENTS})


def test_the_sidecar_is_a_native_one(sidecar: dict[str, Any]):
    assert sidecar["restartPolicy"] == "Always"


def test_every_setting_is_one_that_the_code_declares(sidecar: dict[str, Any]):
    declared = {variable(field) for field in Settings.model_fields}
    assert {entry["name"] for entry in sidecar["env"]} <= declared


@pytest.mark.parametrize("probe", ["startupProbe", "readinessProbe", "livenessProbe"])
def test_a_probe_asks_an_endpoint_that_the_code_declares(sidecar: dict[str, Any], probe: str):
    asked = sidecar[probe]["httpGet"]["path"]
    assert (
        asked == {"startupProbe": "/startupz", "readinessProbe": "/readyz", "livenessProbe": "/livez"}[probe]
    )
    assert asked in {endpoint.path for endpoint in ENDPOINTS}


@pytest.mark.parametrize("probe", ["startupProbe", "readinessProbe", "livenessProbe"])
def test_a_probe_asks_the_port_that_the_sidecar_listens_on(
    sidecar: dict[str, Any], settings: Settings, probe: str
):
    [port] = sidecar["ports"]
    assert sidecar[probe]["httpGet"]["port"] == port["name"]
    assert port["containerPort"] == settings.listen_port


def test_each_number_has_a_reason_near_it():
    lines = (BASE / "deployment.yaml").read_text(encoding="utf-8").splitlines()
    number = re.compile(r"^\s+(\w+Seconds|\w+Threshold|max\w+|sizeLimit|cpu|memory): ")
    numbers = [index for index, line in enumerate(lines) if number.match(line)]
    assert len(numbers) > 10
    # A reason above the first of a block speaks for what follows directly.
    unexplained = [lines[at].strip() for at in numbers if not any("#" in line for line in lines[at - 6 : at])]
    assert unexplained == []


def test_the_engine_is_asked_where_it_listens(engine: dict[str, Any], settings: Settings):
    [port] = engine["ports"]
    assert settings.engine_url == f"http://127.0.0.1:{port['containerPort']}"
    assert str(port["containerPort"]) in engine["args"]
    assert by_kind("Service")["spec"]["ports"][0]["targetPort"] == port["name"]


def test_the_engine_is_started_by_the_launcher_that_the_sidecar_drops(
    engine: dict[str, Any], settings: Settings
):
    assert engine["command"] == ["python3", f"{settings.control_dir}/launcher.py", "--"]


def test_both_containers_see_control_and_live_cache_at_the_same_paths(
    sidecar: dict[str, Any], engine: dict[str, Any], settings: Settings
):
    shared = {"control": str(settings.control_dir), "live-cache": str(settings.live_cache)}
    assert {name: mounts(sidecar)[name] for name in shared} == shared
    assert {name: mounts(engine)[name] for name in shared} == shared


def test_the_live_cache_is_private_to_the_pod_and_the_store_is_not(
    pod: dict[str, Any], engine: dict[str, Any]
):
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert "emptyDir" in volumes["live-cache"]
    assert "emptyDir" in volumes["control"]
    claim = volumes["store"]["persistentVolumeClaim"]["claimName"]
    assert by_kind("PersistentVolumeClaim")["metadata"]["name"] == claim
    assert "ReadWriteMany" in by_kind("PersistentVolumeClaim")["spec"]["accessModes"]
    assert "store" not in mounts(engine)


def test_the_store_is_mounted_where_the_settings_say(sidecar: dict[str, Any], settings: Settings):
    assert mounts(sidecar)["store"] == settings.store


def test_a_drain_fits_into_the_grace_period(pod: dict[str, Any], settings: Settings):
    # 2 s for the sidecar, and at least 10 s for the engine to end after its last request.
    assert pod["terminationGracePeriodSeconds"] >= settings.settle_s + settings.drain_s + 12


def test_a_first_boot_fits_into_the_progress_deadline(settings: Settings):
    assert by_kind("Deployment")["spec"]["progressDeadlineSeconds"] > settings.warm_budget_s


def test_the_sidecar_is_not_root_and_can_write_what_is_shared(pod: dict[str, Any], sidecar: dict[str, Any]):
    rights = sidecar["securityContext"]
    assert rights["runAsNonRoot"]
    assert rights["runAsUser"] != 0
    assert rights["runAsGroup"] == pod["securityContext"]["fsGroup"]
    assert rights["readOnlyRootFilesystem"]
    assert rights["allowPrivilegeEscalation"] is False
    assert rights["capabilities"] == {"drop": ["ALL"]}


def test_the_image_is_a_placeholder_with_this_version(sidecar: dict[str, Any]):
    # A registry.example.com can't exist, so nobody pulls by accident what somebody else put there.
    assert sidecar["image"] == f"registry.example.com/warmup-sidecar:{__version__}"
    kustomization = yaml.safe_load((BASE / "kustomization.yaml").read_text(encoding="utf-8"))
    assert kustomization["images"] == [{"name": "registry.example.com/warmup-sidecar", "newTag": __version__}]


def test_the_container_file_runs_as_the_user_of_the_manifest(sidecar: dict[str, Any]):
    text = (ROOT / "k8s" / "Containerfile").read_text(encoding="utf-8")
    rights = sidecar["securityContext"]
    assert f"USER {rights['runAsUser']}:{rights['runAsGroup']}" in text
    assert sidecar["image"] in text
