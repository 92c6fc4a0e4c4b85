"""Manifests, chart and webhook against the one declaration of the pod in sidecar/kube/injection/, and that against the code.

What a cluster would accept is tested in tests/kubernetes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from sidecar.caches import families
from sidecar.cli import COMMANDS
from sidecar.config import Settings, variable
from sidecar.daemon import assembly, process
from sidecar.errors import EXIT_NOT_SO, EXIT_USAGE
from sidecar.kube import rights
from sidecar.kube.condition import CONDITION
from sidecar.kube.injection import budgets, shape
from sidecar.kube.injection.shape import Shape
from sidecar.metrics import documented
from sidecar.metrics.injector import INJECTOR_TABLE
from sidecar.metrics.table import PREFIX
from sidecar.web.app import ENDPOINTS
from tests.kubernetes.rendered import K8S, ROOT, Json, charted, containers, everything, kustomized, named, plain, pods

IMAGE = "registry.example.com/warmup-sidecar:0.1.0"
SETTINGS = Settings()

#: Names of metrics as they stand in queries: the parts of a histogram are those of its base.
METRIC = re.compile(rf"\b{PREFIX}\w+")


def sidecars() -> Iterator[tuple[str, Json, Json]]:
    """Give every pod with a sidecar that is shipped: where it comes from, the pod's spec, the sidecar's container."""
    for source, document in everything():
        for pod in pods(document):
            for container in containers(pod):
                if container["name"] == shape.NAME:
                    yield source, pod, container


def values(container: Json) -> dict[str, str]:
    return {entry["name"]: entry.get("value", "") for entry in container.get("env", [])}


def deployment(documents: tuple[Json, ...]) -> Json:
    [found] = [document["spec"] for document in documents if document["kind"] == "Deployment"]
    return found


def seconds(container: Json, name: str) -> float:
    return float(values(container).get(variable(name)) or getattr(SETTINGS, name))


def same_names(container: Json) -> Json:
    """Give the container with variables and mounts by name: their order means nothing."""
    listed = {field: {entry["name"]: entry for entry in container.get(field, [])} for field in ("env", "volumeMounts")}
    return {**container, **listed}


# --- the declaration and the code ----------------------------------------------------------------------------------------


def test_the_waits_of_the_budgets_are_those_of_daemon_and_launcher():
    messages = (ROOT / "sidecar" / "launcher" / "messages.py").read_text(encoding="utf-8")
    said = dict(re.findall(r'"(\w+_s)": ([\d.]+)', messages))
    assert float(said["grace_s"]) == budgets.LAUNCHER_GRACE_S
    assert float(said["kill_s"]) == budgets.ENGINE_END_S
    assert assembly.LAUNCHER_GRACE_S == budgets.DECISION_S
    assert process.STARTUP_GRACE_S == budgets.BESIDE_S


def test_the_places_of_the_shape_are_the_defaults_of_the_settings():
    declared = Shape(IMAGE)
    assert declared.engine_url == SETTINGS.engine_url
    assert declared.port == SETTINGS.listen_port
    assert (declared.control_dir, declared.live_cache) == (str(SETTINGS.control_dir), str(SETTINGS.live_cache))
    assert str(SETTINGS.service_account) == shape.TOKEN_PATH


def test_probes_ask_endpoints_that_the_code_declares():
    asked = {probe["httpGet"]["path"] for probe in shape.probes(Shape(IMAGE)).values()}
    assert asked == {"/startupz", "/readyz", "/livez"}
    assert asked <= {endpoint.path for endpoint in ENDPOINTS}


def test_every_control_volume_is_the_declared_one():
    control = {volume["name"]: volume for volume in shape.volumes(Shape(IMAGE))}["control"]
    shipped = {source: {volume["name"]: volume for volume in pod["volumes"]}.get("control") for source, pod, _ in sidecars()}
    assert len(shipped) > 5
    assert {source for source, volume in shipped.items() if volume not in (control, None)} == set()
    assert sum(volume is None for volume in shipped.values()) < 3, [each for each, volume in shipped.items() if not volume]


@pytest.mark.parametrize("launcher", [True, False])
def test_the_startup_probe_outlasts_the_daemons_own_cap(launcher: bool):
    declared = Shape(IMAGE, launcher=launcher)
    probe = shape.probes(declared)["startupProbe"]
    cap = 0 if launcher else SETTINGS.restore_timeout_s + process.STARTUP_GRACE_S
    # 10 s for the start of the process itself, under load.
    assert budgets.allowed_s(probe) >= cap + 10


# --- manifests and the declaration ---------------------------------------------------------------------------------------


def test_the_bases_sidecar_is_the_declared_one():
    pod = deployment(kustomized("base"))["template"]["spec"]
    assert named(pod, shape.NAME) == shape.sidecar_container(Shape(IMAGE))
    declared = {volume["name"]: volume for volume in shape.volumes(Shape(IMAGE))}
    assert {volume["name"]: volume for volume in pod["volumes"] if volume["name"] in declared} == declared
    mounts = named(pod, "engine")["volumeMounts"]
    assert all(mount in mounts for mount in shape.engine_mounts(Shape(IMAGE)))


NO_LAUNCHER = {"pod_facts": "true", "node_facts": "true"}
SIDECARS = {
    "components/readiness-gate": Shape(IMAGE, gate=True),
    "components/store-read-only": Shape(IMAGE, store_read_only=True),
    "components/store-node-local": Shape(IMAGE),
    "components/golden": Shape(IMAGE, golden="warmup-golden"),
    "components/plain-sidecar": Shape(IMAGE, native=False),
    "components/events": Shape(IMAGE, settings={"events": "true"}),
    "components/without-launcher": Shape(IMAGE, launcher=False, settings=NO_LAUNCHER),
    "components/plain-sidecar-without-launcher": Shape(IMAGE, launcher=False, native=False, settings=NO_LAUNCHER),
}


@pytest.mark.parametrize("name", SIDECARS)
def test_a_components_sidecar_is_the_declared_one(name: str):
    pod = deployment(kustomized(name))["template"]["spec"]
    assert same_names(named(pod, shape.NAME)) == same_names(shape.sidecar_container(SIDECARS[name]))


def test_the_readiness_gates_token_is_the_declared_one():
    pod = deployment(kustomized("components/readiness-gate"))["template"]["spec"]
    assert shape.token_volume(Shape(IMAGE)) in pod["volumes"]
    assert pod["readinessGates"] == [{"conditionType": CONDITION}]
    assert pod["automountServiceAccountToken"] is False


def test_the_init_container_of_old_clusters_is_the_declared_one():
    for documents in (kustomized("components/plain-sidecar"), charted("plain-sidecar")):
        pod = deployment(documents)["template"]["spec"]
        assert named(pod, shape.INIT_NAME) == shape.launcher_container(Shape(IMAGE))
        assert values(named(pod, "engine"))["WARMUP_LAUNCHER_GRACE_S"] == str(budgets.PLAIN_GRACE_S)


def test_without_launcher_and_native_sidecars_an_init_container_restores_with_the_sidecars_settings_and_volumes():
    documents = kustomized("components/plain-sidecar-without-launcher")
    pod = deployment(documents)["template"]["spec"]
    declared = shape.restore_container(Shape(IMAGE, launcher=False, native=False, settings=NO_LAUNCHER))
    assert [container["name"] for container in pod["initContainers"]] == [shape.RESTORE_NAME]
    assert [container["name"] for container in pod["containers"]] == [shape.NAME, "engine"]
    restore = named(pod, shape.RESTORE_NAME)
    assert same_names(restore) == same_names(declared)
    for field in ("env", "volumeMounts"):
        assert restore[field] == named(pod, shape.NAME)[field]


CHARTS = {
    "defaults": Shape(IMAGE),
    "hopper": Shape(IMAGE, gate=True),
    "cpu": Shape(IMAGE, store=""),
    "plain-sidecar": Shape(IMAGE, native=False, gate=True),
    "node-local": Shape(IMAGE),
    "golden": Shape(
        IMAGE,
        golden="warmup-golden/golden.yaml",
        settings={
            "fallbacks": "--kv-cache-dtype auto; VLLM_USE_DEEP_GEMM=0",
            "on_golden_failed": "retry-cold,fallback,hold",
        },
    ),
    "golden-folder": Shape(
        IMAGE,
        native=False,
        golden="warmup-golden",
        settings={"fallbacks": "--kv-cache-dtype auto", "on_golden_failed": "fallback,serve"},
    ),
    "bucket": Shape(IMAGE, store_read_only=True),
    "existing-read-only": Shape(IMAGE, store_read_only=True),
    "api-key": Shape(
        IMAGE,
        engine_url="http://127.0.0.1:8200",
        port=9898,
        api_key=True,
        settings={"single_flight_s": "1200", "warm_budget_s": "600", "drain_s": "120"},
    ),
}


@pytest.mark.parametrize("name", CHARTS)
def test_the_charts_sidecar_is_the_declared_one(name: str):
    pod = deployment(charted(name))["template"]["spec"]
    assert same_names(named(pod, shape.NAME)) == same_names(shape.sidecar_container(CHARTS[name]))
    declared = shape.volumes(CHARTS[name])
    assert [volume for volume in pod["volumes"] if volume in declared] == declared


@pytest.mark.parametrize("name", CHARTS)
def test_the_charts_engine_has_the_declared_startup_budget(name: str):
    pod = deployment(charted(name))["template"]["spec"]
    cold = 3600 if name == "api-key" else budgets.ENGINE_COLD_START_S
    assert named(pod, "engine")["startupProbe"] == shape.engine_startup_probe(CHARTS[name], "engine", cold)


# --- sums ----------------------------------------------------------------------------------------------------------------


def test_every_engines_startup_probe_covers_launcher_restore_and_cold_compile():
    for source, pod, container in sidecars():
        waits = (seconds(container, "restore_timeout_s"), seconds(container, "single_flight_s"))
        for engine in containers(pod):
            if engine["name"] == "engine" and "startupProbe" in engine:
                needed = budgets.engine_start_s(*waits, budgets.ENGINE_COLD_START_S)
                assert budgets.allowed_s(engine["startupProbe"]) >= needed, source


def test_every_progress_deadline_covers_a_first_boot():
    looked_at = 0
    for source, document in everything():
        spec = document.get("spec") or {}
        for pod in pods(document) if "progressDeadlineSeconds" in spec else ():
            container = next((each for each in containers(pod) if each["name"] == shape.NAME), None)
            engine = next((each for each in containers(pod) if each["name"] == "engine"), None)
            if container and engine:
                engine_s = budgets.allowed_s(engine["startupProbe"])
                warm_s, request_s = seconds(container, "warm_budget_s"), seconds(container, "request_timeout_s")
                assert spec["progressDeadlineSeconds"] >= budgets.ready_s(engine_s, warm_s, request_s), source
                looked_at += 1
    assert looked_at > 10


def test_the_prewarming_job_lives_as_long_as_a_first_boot_and_a_publish():
    [job] = [document["spec"] for source, document in plain() if source.endswith("prewarm/job.yaml")]
    pod = job["template"]["spec"]
    engine_s = budgets.allowed_s(named(pod, "engine")["startupProbe"])
    ready_s = budgets.ready_s(engine_s, SETTINGS.warm_budget_s, SETTINGS.request_timeout_s)
    # The image may be pulled already, and what is left over is the publish's.
    assert job["activeDeadlineSeconds"] >= ready_s + SETTINGS.publish_timeout_s
    waits = dict(zip(named(pod, "published")["args"], named(pod, "published")["args"][1:], strict=False))
    after_start_s = SETTINGS.warm_budget_s + SETTINGS.request_timeout_s + SETTINGS.publish_timeout_s
    assert float(waits["--timeout"]) >= after_start_s


def test_pods_of_a_signed_store_hold_public_keys_alone_and_cannot_write_it():
    for documents in (kustomized("components/signed-store"), charted("signed-store")):
        pod = deployment(documents)["template"]["spec"]
        sidecar = named(pod, shape.NAME)
        mounts = {mount["name"]: mount for mount in sidecar["volumeMounts"]}
        given = values(sidecar)
        assert given["WARMUP_TRUSTED_KEYS_FILE"].startswith(mounts["trusted-keys"]["mountPath"] + "/")
        assert given["WARMUP_STORE_MODE"] == "read-only"
        assert mounts["store"]["readOnly"]
        assert "WARMUP_SIGNING_KEY_FILE" not in given
        assert not [volume for volume in pod["volumes"] if "secret" in volume]
        assert "trusted-keys" not in {mount["name"] for mount in named(pod, "engine")["volumeMounts"]}


def test_the_prewarming_job_with_its_comments_taken_away_holds_the_private_key_in_the_sidecar_alone():
    text = (ROOT / "k8s" / "examples" / "prewarm" / "job.yaml").read_text(encoding="utf-8")
    signed = re.sub(r"^( +)# (?=- name: (?:WARMUP_SIGNING|signing)|  )", r"\1", text, flags=re.MULTILINE)
    pod = yaml.safe_load(signed)["spec"]["template"]["spec"]
    [volume] = [one for one in pod["volumes"] if one["name"] == "signing-key"]
    assert volume["secret"]["defaultMode"] == 0o440, "the sidecar refuses a key that everybody can read"
    folder = {mount["name"]: mount["mountPath"] for mount in named(pod, shape.NAME)["volumeMounts"]}["signing-key"]
    assert values(named(pod, shape.NAME))["WARMUP_SIGNING_KEY_FILE"] == f"{folder}/signing-key"
    assert "signing-key" not in {mount["name"] for mount in named(pod, "engine")["volumeMounts"]}


def test_every_grace_period_covers_drain_and_two_ends():
    for source, pod, container in sidecars():
        hook = named(pod, "engine").get("lifecycle") is not None
        drain_s = budgets.BESIDE_DRAIN_S if hook else seconds(container, "drain_s")
        assert pod["terminationGracePeriodSeconds"] >= drain_s + budgets.ENGINE_END_S + budgets.SIDECAR_END_S, source


# --- names ---------------------------------------------------------------------------------------------------------------


def test_every_setting_is_one_that_the_code_declares():
    declared = {variable(field) for field in Settings.model_fields}
    for source, _, container in sidecars():
        given = values(container)
        assert set(given) <= declared, source
        Settings.model_validate({name.removeprefix("WARMUP_").lower(): value for name, value in given.items() if value})


def test_every_command_of_our_image_is_one_that_the_code_has():
    looked_at = set()
    for source, document in everything():
        for pod in pods(document):
            for container in containers(pod):
                if container["image"] == IMAGE and "command" not in container:
                    assert container["args"][0] in COMMANDS, source
                    looked_at.add(container["args"][0])
    assert {"run", "launcher", "restore", "injector"} <= looked_at


def test_every_port_that_is_asked_is_one_that_the_sidecar_opens():
    for source, pod, container in sidecars():
        [port] = container["ports"]
        assert values(container)["WARMUP_LISTEN"].endswith(f":{port['containerPort']}"), source
        asked = {probe["httpGet"]["port"] for name, probe in container.items() if name.endswith("Probe")}
        assert asked == {port["name"]}, source
        if "dynamo" in source:
            continue
        engine = {port["containerPort"] for port in named(pod, "engine").get("ports", [])} or {8000}
        assert int(values(container)["WARMUP_ENGINE_URL"].rpartition(":")[2]) in engine, source


@pytest.mark.parametrize("name", ["components/without-launcher", "components/plain-sidecar-without-launcher"])
def test_without_the_launcher_the_engine_gets_every_familys_variable(name: str):
    pod = deployment(kustomized(name))["template"]["spec"]
    given = values(named(pod, "engine"))
    expected = families.environment(str(SETTINGS.live_cache))
    assert {name: given.get(name) for name in expected} == expected


def test_the_profiles_of_the_queues_are_shipped():
    for name in ("hopper", "blackwell"):
        pod = deployment(kustomized(f"examples/kueue/{name}"))["template"]["spec"]
        profile = values(named(pod, shape.NAME))["WARMUP_PROFILE"]
        assert (ROOT / "warmup_profiles" / f"{profile}.yaml").is_file()


def known_metrics() -> set[str]:
    known = {name for name, *_ in documented()}
    known |= {PREFIX + metric.name for metric in INJECTOR_TABLE}
    return known | {name + suffix for name in known for suffix in ("_bucket", "_count", "_sum")}


def test_every_metric_in_k8s_is_one_that_the_code_declares():
    texts = {
        path: path.read_text(encoding="utf-8")
        for path in sorted(K8S.rglob("*"))
        if path.suffix in (".yaml", ".md", ".tpl")
    }
    used = {(path.relative_to(K8S).as_posix(), name) for path, text in texts.items() for name in METRIC.findall(text)}
    assert len(used) > 10
    assert sorted(each for each in used if each[1] not in known_metrics()) == []


def test_every_role_gives_exactly_what_its_feature_needs():
    features = {feature.name: feature for feature in rights.FEATURES}
    for name, listed in (
        ("readiness-gate", ["readiness gate"]),
        ("events", ["events"]),
        ("without-launcher", ["pod facts", "node facts"]),
        ("plain-sidecar-without-launcher", ["pod facts", "node facts"]),
    ):
        chosen = [features[each] for each in listed]
        documents = kustomized(f"components/{name}")
        assert given(documents, "Role") == in_order(rights.rules(chosen)), name
        assert given(documents, "ClusterRole") == in_order(rights.rules(chosen, cluster=True)), name
    both = [features["readiness gate"], features["events"]]
    assert given(charted("hopper"), "Role") == in_order(rights.rules(both[:1]))
    assert given(charted("blackwell"), "Role") == in_order(rights.rules(both[1:]))


def given(documents: tuple[Json, ...], kind: str) -> list[Any]:
    return in_order([rule for document in documents if document["kind"] == kind for rule in document["rules"]])


def in_order(rules: list[Json]) -> list[Any]:
    return sorted((rule["apiGroups"], rule["resources"], sorted(rule["verbs"])) for rule in rules)


def test_only_the_sidecar_gets_a_token_and_the_store():
    for source, pod, _ in sidecars():
        for container in containers(pod):
            secret = [
                mount
                for mount in container.get("volumeMounts", [])
                if mount["name"] in ("token", "store", "api-key", "golden")
            ]
            assert container["name"] in (shape.NAME, shape.RESTORE_NAME) or secret == [], source


def test_the_golden_files_of_the_component_are_optional_and_lie_where_the_setting_says():
    pod = deployment(kustomized("components/golden"))["template"]["spec"]
    declared = Shape(IMAGE, golden="warmup-golden")
    assert all(volume in pod["volumes"] for volume in shape.volumes(declared))
    assert values(named(pod, shape.NAME))["WARMUP_GOLDEN"] == shape.GOLDEN_PATH


def test_the_rollouts_gate_compares_with_the_golden_files_and_fails_at_once_where_they_disagree():
    [template] = [document for _, document in plain() if document["kind"] == "AnalysisTemplate"]
    [job] = [metric["provider"]["job"]["spec"] for metric in template["spec"]["metrics"] if metric["name"] == "golden"]
    [container] = job["template"]["spec"]["containers"]
    assert container["args"][:2] == ["golden", "check"]
    given = dict(zip(container["args"][2::2], container["args"][3::2], strict=True))
    [mount] = container["volumeMounts"]
    assert given["--golden"] == mount["mountPath"]
    [rule] = job["podFailurePolicy"]["rules"]
    assert set(rule["onExitCodes"]["values"]) == {EXIT_USAGE, EXIT_NOT_SO}
    [rollout] = [document["spec"] for _, document in plain() if document["kind"] == "Rollout"]
    host = rollout["strategy"]["canary"]["canaryService"]
    assert given["--url"] == f"http://{host}:8000"
    assert host in [document["metadata"]["name"] for _, document in plain() if document["kind"] == "Service"]


def test_the_charts_alerts_are_those_of_the_component():
    rules = yaml.safe_load((K8S / "chart" / "files" / "rules.yaml").read_text(encoding="utf-8"))
    component = yaml.safe_load((K8S / "components" / "monitoring" / "prometheusrule.yaml").read_text(encoding="utf-8"))
    assert rules == component["spec"]


def test_compose_says_what_the_code_declares():
    content = yaml.safe_load((K8S / "examples" / "compose" / "compose.yaml").read_text(encoding="utf-8"))
    sidecar, engine = content["services"]["sidecar"], content["services"]["engine"]
    settings = {name.removeprefix("WARMUP_").lower(): value for name, value in sidecar["environment"].items()}
    parsed = Settings.model_validate(settings)
    assert engine["entrypoint"] == ["python3", f"{parsed.control_dir}/launcher.py", "--"]
    shared = {f"control:{parsed.control_dir}", f"live-cache:{parsed.live_cache}"}
    assert shared <= set(sidecar["volumes"])
    assert shared <= set(engine["volumes"])
    assert float(engine["stop_grace_period"].rstrip("s")) >= budgets.grace_period_s(parsed.drain_s)
