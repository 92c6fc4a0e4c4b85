"""What the manifests and the chart promise of a store in a bucket that the sidecar speaks to itself, nodes' copies, cleaning up.

No cluster is asked here, and no bucket: `tests/faults/test_daemon_bucket.py`.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from click.testing import CliRunner

from sidecar.caches.retention import limits_of
from sidecar.commands.store import command
from sidecar.config.sources import load
from tests.fakes.stored import Stored
from tests.kubernetes.rendered import (
    K8S,
    VERSIONS,
    Json,
    charted,
    containers,
    kustomized,
    loaded,
    named,
    need,
    plain,
    pods,
    run,
)
from tests.kubernetes.test_manifests import of_kind


def laid(scratch: Path, *names: str) -> Json:
    """Lay components over the base, in this order; give the pod of the Deployment."""
    copy = scratch / "k8s"
    shutil.copytree(K8S, copy)
    (copy / "laid").mkdir()
    content = {"resources": ["../base"], "components": [f"../components/{name}" for name in names]}
    (copy / "laid/kustomization.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    done = run([need("kubectl"), "kustomize", copy / "laid"])
    assert done.returncode == 0, done.stderr
    [pod] = [pod for document in of_kind(loaded(done.stdout), "Deployment") for pod in pods(document)]
    return pod


BUCKETS: dict[str, Callable[[], tuple[Json, ...]]] = {
    "component": lambda: kustomized("components/store-bucket-direct"),
    "example": lambda: kustomized("examples/bucket"),
    "chart": lambda: charted("bucket-url"),
}


@pytest.mark.parametrize("where", BUCKETS)
def test_a_buckets_credentials_are_in_the_sidecars_environment_alone_and_keep_nobody_from_starting(where: str):
    documents = BUCKETS[where]()
    assert of_kind(documents, "PersistentVolumeClaim") == []
    [pod] = [pod for document in of_kind(documents, "Deployment") for pod in pods(document)]
    from_secrets = {container["name"]: container.get("envFrom") for container in containers(pod)}
    assert from_secrets == {
        "warmup-sidecar": [{"secretRef": {"name": "warmup-bucket", "optional": True}}],
        "engine": None,
    }
    told = {one["name"]: one["value"] for one in named(pod, "warmup-sidecar")["env"] if "value" in one}
    assert re.fullmatch(r"s3://[a-z-]+/warm", told["WARMUP_STORE"])
    assert "store" not in {volume["name"] for volume in pod["volumes"]}
    # Settings that the daemon itself takes.
    assert not load(told).problems


@pytest.mark.parametrize("where", ["example", "chart", "pack-cache"])
def test_the_nodes_copies_of_archives_are_the_sidecars_alone_and_its_group_may_write_them(where: str):
    documents = BUCKETS[where]() if where in BUCKETS else kustomized(f"components/{where}")
    [pod] = [pod for document in of_kind(documents, "Deployment") for pod in pods(document)]
    mounts = {
        container["name"]: [mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "packs"]
        for container in containers(pod)
    }
    assert mounts == {"warmup-sidecar": ["/mnt/packs"], "engine": []}
    told = {one["name"]: one["value"] for one in named(pod, "warmup-sidecar")["env"] if "value" in one}
    assert (told["WARMUP_PACK_CACHE"], told["WARMUP_PACK_CACHE_LIMIT_BYTES"]) == ("/mnt/packs", "20Gi")
    [volume] = [volume for volume in pod["volumes"] if volume["name"] == "packs"]
    [prepare] = of_kind(kustomized("components/pack-cache"), "DaemonSet")
    [its] = [each for each in prepare["spec"]["template"]["spec"]["volumes"] if each["name"] == "packs"]
    assert volume["hostPath"]["path"] == its["hostPath"]["path"]
    group = pod["securityContext"]["fsGroup"]
    assert (
        f'os.chown("/mnt/packs", 0, {group})' in named(prepare["spec"]["template"]["spec"], "make-directory")["args"][0]
    )


@pytest.mark.parametrize("before", ["signed-store", "store-read-only"])
def test_pods_that_only_read_do_so_from_a_bucket_without_waiting_for_a_volume(before: str, tmp_path: Path):
    pod = laid(tmp_path, before, "store-bucket-direct")
    told = {one["name"]: one["value"] for one in named(pod, "warmup-sidecar")["env"] if "value" in one}
    assert (told["WARMUP_STORE"], told["WARMUP_STORE_MODE"]) == ("s3://my-warmup-store/warm", "read-only")
    assert "store" not in {volume["name"] for volume in pod["volumes"]}
    mounts = {mount["mountPath"] for mount in named(pod, "warmup-sidecar")["volumeMounts"]}
    assert "/mnt/store" not in mounts
    assert ("/run/warmup-trusted-keys" in mounts) == (before == "signed-store")


def test_in_the_wrong_order_they_are_refused_by_the_api_server_and_no_pod_waits_for_a_claim_that_nobody_made(
    tmp_path: Path,
):
    pod = laid(tmp_path, "store-bucket-direct", "store-read-only")
    whole = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "of-a-template"}, "spec": pod}
    with pytest.raises(kubernetes_validate.ValidationError) as refused:
        kubernetes_validate.validate(whole, VERSIONS[-1], strict=True)
    assert "is a required property" in str(refused.value)


def test_a_store_that_is_only_read_keeps_the_claim_that_it_had(tmp_path: Path):
    pod = laid(tmp_path, "store-read-only")
    [store] = [volume for volume in pod["volumes"] if volume["name"] == "store"]
    assert store["persistentVolumeClaim"] == {"claimName": "warmup-store", "readOnly": True}
    [mount] = [each for each in named(pod, "warmup-sidecar")["volumeMounts"] if each["mountPath"] == "/mnt/store"]
    assert mount == {"name": "store", "mountPath": "/mnt/store", "readOnly": True}


def test_the_nightly_cleaning_runs_with_its_settings_and_keeps_what_they_say(tmp_path: Path):
    [job] = [document for source, document in plain() if source.endswith("store-gc/cronjob.yaml")]
    [pod] = pods(job)
    gc = named(pod, "gc")
    told = {one["name"]: one["value"] for one in gc["env"]}
    found = load(told)
    assert not found.problems
    limits = limits_of(found.settings)
    assert (limits.count, limits.unused_s, limits.bytes) == (3, 30 * 86400, 200 * 2**30)
    assert told["WARMUP_STORE"] in {mount["mountPath"] for mount in gc["volumeMounts"]}
    stored = Stored(tmp_path)
    stored.publish("a")
    env = {**told, "WARMUP_STORE": str(stored.place)}
    result = CliRunner().invoke(command, gc["args"][1:], env=env, standalone_mode=False)
    assert (gc["args"][0], result.exception, result.return_value) == ("store", None, 0)
    assert "0 generations" in result.stdout
    assert (stored.place / "v1/gc/last.json").exists()
