"""Components beside one another: every pair gives the same pod in both orders, or the order that makes a broken one is refused.

What each component does alone: test_manifests.py. What stands in `README.md` about orders is looked up there.
"""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.kubernetes.rendered import COMPONENTS, K8S, VERSIONS, Json, named, need, run

GUARD = "before-plain-sidecar"
PLAIN = ("plain-sidecar", "plain-sidecar-without-launcher")
#: Of each of these one is taken: README, "Choose your mode" and "Choose your store".
CHOICES = (
    {*PLAIN, "without-launcher"},
    {"store-bucket", "store-bucket-direct", "store-node-local"},
)
#: Pairs that are rendered by one call: a process for each would take minutes, all at once takes a call too long.
AT_ONCE = 16
#: Refused by the API server when they come behind one of the others, which have no claim any more.
READERS, WITHOUT_CLAIM = ("signed-store", "store-read-only"), ("store-bucket-direct", "store-node-local")


def kustomization(name: str) -> Json:
    found: Json = yaml.safe_load((K8S / "components" / name / "kustomization.yaml").read_text(encoding="utf-8"))
    return found


NAMES = [name.rpartition("/")[2] for name in COMPONENTS]
#: The others only add resources of their own, so that nothing of them can depend on an order.
CHANGING = [name for name in NAMES if {"patches", "components"} & kustomization(name).keys()]


def has_guard(name: str) -> bool:
    parts = [part.removeprefix("../") for part in kustomization(name).get("components", ())]
    return GUARD in parts or any(map(has_guard, parts))


GUARDED = [name for name in CHANGING if name not in PLAIN and has_guard(name)]


def pairs() -> list[tuple[str, str]]:
    """Give the pairs that may be taken together and in both orders."""
    return [
        (one, other)
        for one, other in itertools.combinations(CHANGING, 2)
        if not any({one, other} <= choice for choice in CHOICES)
        and not ({one, other} & {*PLAIN} and {one, other} & {*GUARDED})
        and not ({one, other} & {*READERS} and {one, other} & {*WITHOUT_CLAIM})
    ]


def laid(scratch: Path, orders: Iterable[Sequence[str]]) -> subprocess.CompletedProcess[str]:
    """Render the base once for each order of components, all in one go; names begin with `o0-`, `o1-` and so on."""
    copy = scratch / "k8s"
    shutil.copytree(K8S, copy)
    folders = []
    for number, names in enumerate(orders):
        folder = copy / f"laid-{number}"
        folder.mkdir()
        content = {
            "namePrefix": f"o{number}-",
            "resources": ["../base"],
            "components": [f"../components/{name}" for name in names],
        }
        (folder / "kustomization.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
        folders.append(f"../{folder.name}")
    (copy / "all").mkdir()
    (copy / "all/kustomization.yaml").write_text(yaml.safe_dump({"resources": folders}), encoding="utf-8")
    return run([need("kubectl"), "kustomize", copy / "all"])


def engines(done: subprocess.CompletedProcess[str]) -> dict[str, Json]:
    """Give the pods of the engines' Deployments by the Deployments' names."""
    assert done.returncode == 0, done.stderr
    found = {}
    for text in done.stdout.split("\n---\n"):
        if "\nkind: Deployment\n" in text:
            document = yaml.load(text, yaml.CSafeLoader)
            found[document["metadata"]["name"]] = document["spec"]["template"]["spec"]
    return found


def in_any_order(value: Any, key: str = "") -> Any:
    """Take out what has no meaning in a pod: the order of everything but containers and words of commands."""
    if isinstance(value, dict):
        return {name: in_any_order(one, name) for name, one in value.items()}
    if isinstance(value, list):
        each = [in_any_order(one) for one in value]
        ordered = key in ("containers", "initContainers", "command", "args")
        return each if ordered else sorted(each, key=lambda one: json.dumps(one, sort_keys=True))
    return value


def without_prefixes(pod: Json, number: int) -> Any:
    return in_any_order(json.loads(json.dumps(pod).replace(f'"o{number}-', '"')))


def test_every_two_components_that_go_together_make_the_same_pod_in_both_orders(tmp_path: Path):
    different = []
    for first in range(0, len(pairs()), AT_ONCE):
        some = pairs()[first : first + AT_ONCE]
        found = engines(laid(tmp_path / str(first), [order for pair in some for order in (pair, pair[::-1])]))
        assert len(found) == 2 * len(some)
        pods = [without_prefixes(found[f"o{number}-warm-engine"], number) for number in range(len(found))]
        different += [pair for pair, one, other in zip(some, pods[::2], pods[1::2], strict=True) if one != other]
    assert different == []


def test_a_plain_sidecar_goes_behind_all_that_changes_the_sidecar_and_has_their_changes(tmp_path: Path):
    before = [name for name in GUARDED if name not in ("without-launcher", "store-bucket-direct")]
    found = engines(laid(tmp_path, [(*before, "plain-sidecar"), (*before, "plain-sidecar-without-launcher")]))
    for pod in found.values():
        told = {one["name"] for one in named(pod, "warmup-sidecar")["env"]}
        assert {"WARMUP_GOLDEN", "WARMUP_PACK_CACHE", "WARMUP_TRUSTED_KEYS_FILE", "WARMUP_READINESS_GATE"} <= told
        assert [container["name"] for container in pod["containers"]] == ["warmup-sidecar", "engine"]


@pytest.mark.parametrize("plain", PLAIN)
@pytest.mark.parametrize("late", [name for name in GUARDED if name != "without-launcher"])
def test_what_changes_the_sidecar_is_refused_behind_a_plain_one_by_a_name_that_says_why(
    late: str, plain: str, tmp_path: Path
):
    done = laid(tmp_path, [(plain, late)])
    assert done.returncode != 0
    assert f"components/{GUARD}" in done.stderr


def test_everything_that_changes_the_sidecars_container_is_guarded():
    changing = set()
    for name in CHANGING:
        patch = K8S / "components" / name / "deployment.yaml"
        pod = yaml.safe_load(patch.read_text(encoding="utf-8"))["spec"]["template"]["spec"] if patch.exists() else {}
        if any(container["name"] == "warmup-sidecar" for container in pod.get("initContainers", ())):
            changing.add(name)
    assert {"golden", "store-read-only"} < changing
    assert changing <= {*GUARDED}


@pytest.mark.parametrize("choice", CHOICES, ids=lambda choice: min(choice))
def test_two_modes_or_two_stores_at_once_are_refused_in_one_order_at_least(choice: set[str], tmp_path: Path):
    for number, pair in enumerate(itertools.combinations(sorted(choice), 2)):
        codes = [laid(tmp_path / f"{number}-{at}", [order]).returncode for at, order in enumerate((pair, pair[::-1]))]
        assert any(codes), pair


@pytest.mark.parametrize("store", WITHOUT_CLAIM)
@pytest.mark.parametrize("reader", READERS)
def test_a_store_that_is_only_read_goes_before_one_that_has_no_claim_and_is_refused_by_the_api_server_behind_it(
    store: str, reader: str, tmp_path: Path
):
    found = engines(laid(tmp_path, [(reader, store), (store, reader)]))
    right, wrong = found["o0-warm-engine"], found["o1-warm-engine"]
    whole = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "of-a-template"}}
    kubernetes_validate.validate({**whole, "spec": right}, VERSIONS[-1], strict=True)
    with pytest.raises(kubernetes_validate.ValidationError, match="is a required property"):
        kubernetes_validate.validate({**whole, "spec": wrong}, VERSIONS[-1], strict=True)


def test_the_readme_says_every_order_that_counts():
    said = (
        (K8S / "README.md").read_text(encoding="utf-8").partition("### The order of components")[2].partition("\n#")[0]
    )
    for name in (*PLAIN, *READERS, *WITHOUT_CLAIM, "readiness-gate", GUARD):
        assert f"`{name}`" in said, name
