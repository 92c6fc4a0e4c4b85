"""The Roles that are shipped hold exactly the rights that the code declares for the features that are switched on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from sidecar.config import Settings, variable
from sidecar.kube import rights
from sidecar.kube.rights import FEATURES, Feature

COMPONENTS = Path(__file__).resolve().parents[2] / "k8s" / "components"


def documents(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for path in sorted(folder.glob("*.yaml")):
        found += [each for each in yaml.safe_load_all(path.read_text(encoding="utf-8")) if isinstance(each, dict)]
    return found


def switched_on(folder: Path) -> list[Feature]:
    text = "".join(path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.yaml")))
    return [feature for feature in FEATURES if f"name: {variable(feature.setting)}" in text]


WITH_ROLES = [
    folder
    for folder in sorted(COMPONENTS.iterdir())
    if folder.is_dir() and any(each.get("kind") in ("Role", "ClusterRole") for each in documents(folder))
]


def merged(roles: list[dict[str, Any]]) -> dict[tuple[str, str], set[str]]:
    verbs: dict[tuple[str, str], set[str]] = {}
    for role in roles:
        for rule in role["rules"]:
            for group in rule["apiGroups"]:
                for resource in rule["resources"]:
                    verbs.setdefault((group, resource), set()).update(rule["verbs"])
    return verbs


@pytest.mark.parametrize("folder", WITH_ROLES, ids=lambda folder: folder.name)
@pytest.mark.parametrize("kind", ["Role", "ClusterRole"])
def test_a_component_grants_what_its_features_need_and_no_more(folder: Path, kind: str):
    shipped = [each for each in documents(folder) if each["kind"] == kind]
    declared = [{"rules": rights.rules(switched_on(folder), cluster=kind == "ClusterRole")}]
    assert merged(shipped) == merged(declared)


def test_every_feature_has_a_component_that_switches_it_on():
    shipped = {feature for folder in WITH_ROLES for feature in switched_on(folder)}
    assert shipped == set(FEATURES)


def test_every_feature_hangs_on_a_setting_that_is_off_by_default():
    assert rights.wanted(Settings()) == ()
    for feature in FEATURES:
        assert rights.wanted(Settings.model_validate({feature.setting: True})) == (feature,)
