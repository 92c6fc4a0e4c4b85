"""What the webhook makes of pods of many shapes: who gets the sidecar and how, and why another one stays as it is."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from sidecar.kube.injection import budgets
from sidecar.kube.injection.options import INJECTED, Options, from_file
from sidecar.kube.injection.patch import difference
from sidecar.kube.injection.review import WARNING_CHARACTERS, Answer, Reviewer
from sidecar.kube.injection.shape import DOMAIN
from tests.kubernetes import pod_shapes
from tests.kubernetes.patching import applied, patched
from tests.kubernetes.pod_shapes import Json, engine, labelled, pod, review
from tests.kubernetes.rendered import containers, named

OPTIONS = Options(image="registry.example.com/warmup-sidecar:0.1.0")
CACHES = {"A_CACHE": "{live}/a", "B_CACHE": "{live}/b"}


def ask(document: Json, options: Options = OPTIONS) -> Answer:
    return Reviewer(options, CACHES, "0.1.0").answer(review(document))


def made(name_or_pod: str | Json, options: Options = OPTIONS) -> Json:
    """Give the spec of a pod after the webhook."""
    given = pod_shapes.INJECTED[name_or_pod] if isinstance(name_or_pod, str) else name_or_pod
    before = labelled(given)
    answer = ask(before, options)
    assert answer.outcome == "injected", answer.warnings
    spec = patched(before, answer.body)["spec"]
    assert isinstance(spec, dict)
    return spec


def variables(container: Json) -> dict[str, Any]:
    return {entry["name"]: entry.get("value") for entry in container.get("env", [])}


def of_engine(spec: Json) -> Json:
    return named(spec, "vllm")


def of_sidecar(spec: Json) -> Json:
    return named(spec, "warmup-sidecar")


# --- all of them -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", pod_shapes.INJECTED)
def test_doing_it_again_changes_nothing(name: str):
    before = labelled(pod_shapes.INJECTED[name])
    once = patched(before, ask(before).body)
    again = ask(once)
    assert (again.outcome, again.warnings) == ("unchanged", ())
    assert patched(once, again.body) == once


@pytest.mark.parametrize("name", pod_shapes.INJECTED)
def test_what_was_there_stays(name: str):
    before = labelled(pod_shapes.INJECTED[name])
    after = patched(before, ask(before).body)["spec"]
    for container in containers(before["spec"]):
        now = named(after, container["name"])
        for field in ("image", "args", "resources", "readinessProbe", "livenessProbe", "ports", "securityContext"):
            assert now.get(field) == container.get(field), field
        for field in ("env", "volumeMounts"):
            assert now.get(field, [])[: len(container.get(field, []))] == container.get(field, [])
    count = len(before["spec"].get("volumes", []))
    assert after["volumes"][:count] == before["spec"].get("volumes", [])


@pytest.mark.parametrize("name", pod_shapes.INJECTED)
def test_names_paths_and_ports_are_each_used_once(name: str):
    spec = made(name)
    listed = [volume["name"] for volume in spec["volumes"]]
    assert len(listed) == len(set(listed))
    names = [container["name"] for container in containers(spec)]
    assert len(names) == len(set(names))
    ports = [port["containerPort"] for container in containers(spec) for port in container.get("ports", [])]
    assert len(ports) == len(set(ports))
    for container in containers(spec):
        paths = [mount["mountPath"] for mount in container.get("volumeMounts", [])]
        assert len(paths) == len(set(paths))
        assert {mount["name"] for mount in container.get("volumeMounts", [])} <= set(listed)


@pytest.mark.parametrize("name", pod_shapes.INJECTED)
def test_both_containers_mean_the_same_live_cache_and_the_store_is_the_sidecars_alone(name: str):
    spec = made(name)
    ours = {mount["mountPath"]: mount["name"] for mount in of_sidecar(spec)["volumeMounts"]}
    its = {mount["mountPath"]: mount["name"] for mount in of_engine(spec)["volumeMounts"]}
    for path in (variables(of_sidecar(spec))["WARMUP_LIVE_CACHE"], variables(of_sidecar(spec))["WARMUP_CONTROL_DIR"]):
        assert ours[path] == its[path]
    for path in ("/mnt/store", "/run/secrets/warmup-api-key", "/var/run/secrets/kubernetes.io/serviceaccount"):
        assert path not in its


@pytest.mark.parametrize("name", pod_shapes.REFUSED)
def test_a_pod_that_can_not_have_it_is_admitted_as_it_is_with_the_reason(name: str):
    given, reason = pod_shapes.REFUSED[name]
    before = labelled(given)
    answer = ask(before)
    assert answer.outcome == "refused"
    assert patched(before, answer.body) == before
    [warning] = answer.body["response"]["warnings"]
    assert reason in warning
    assert len(warning) <= WARNING_CHARACTERS


@pytest.mark.parametrize("label", ["", "false", "yes", None])
def test_a_pod_without_the_label_is_left_alone_without_a_word(label: str | None):
    before = copy.deepcopy(pod_shapes.INJECTED["args only"])
    if label is not None:
        before["metadata"]["labels"] = {"warmup-sidecar.io/inject": label}
    answer = ask(before)
    assert answer.outcome == "unchanged"
    assert answer.body["response"] == {"uid": review(before)["request"]["uid"], "allowed": True}


@pytest.mark.parametrize(
    "fields",
    [{"operation": "UPDATE"}, {"resource": {"resource": "deployments"}}, {"object": None}, {"subResource": "status"}],
)
def test_only_the_creation_of_pods_is_of_interest(fields: Json):
    asked = review(labelled(pod_shapes.INJECTED["args only"]), **fields)
    assert Reviewer(OPTIONS, CACHES, "0.1.0").answer(asked).outcome == "unchanged"


# --- the engine ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("args only", ["python3", "--", "vllm", "serve"]),
        ("args only, old entrypoint", ["python3", "--", "python3", "-m", "vllm.entrypoints.openai.api_server"]),
        ("args only, by digest", ["python3", "--", "python3", "-m", "vllm.entrypoints.openai.api_server"]),
        ("command and args", ["python3", "--", "vllm", "serve"]),
        (
            "command only",
            ["/opt/venv/bin/python3.12", "--", "/opt/venv/bin/python3.12", "-m", "vllm.entrypoints.openai.api_server"],
        ),
        ("shell", ["python3", "--", "/bin/sh", "-c", "exec vllm serve m --port=${PORT}"]),
        ("annotated command", ["python3", "--", "python3", "-m", "my.engine"]),
    ],
)
def test_the_launcher_stands_before_the_command(name: str, command: list[str]):
    assert of_engine(made(name))["command"] == [command[0], "/run/warmup/launcher.py", *command[1:]]


@pytest.mark.parametrize(
    ("name", "url"),
    [
        ("args only", "http://127.0.0.1:8000"),
        ("command and args", "http://127.0.0.1:9001"),
        ("shell", "http://127.0.0.1:8100"),
        ("host network", "http://127.0.0.1:8003"),
        ("tls", "https://127.0.0.1:8000"),
    ],
)
def test_the_engine_is_asked_where_its_arguments_say(name: str, url: str):
    assert variables(of_sidecar(made(name)))["WARMUP_ENGINE_URL"] == url


def test_a_port_of_the_container_counts_where_no_argument_names_one():
    given = pod(engine(ports=[{"name": "metrics", "containerPort": 9000}, {"name": "http", "containerPort": 8200}]))
    assert variables(of_sidecar(made(given)))["WARMUP_ENGINE_URL"] == "http://127.0.0.1:8200"


@pytest.mark.parametrize("name", ["several containers", "several engines, one named", "found by its GPU"])
def test_of_several_containers_the_engine_is_found(name: str):
    spec = made(name)
    begun = [
        container["name"]
        for container in spec["containers"]
        if "/run/warmup/launcher.py" in container.get("command", [])
    ]
    assert begun == ["vllm"]


def test_an_init_container_is_started_before_the_sidecar():
    names = [container["name"] for container in made("init containers")["initContainers"]]
    assert names == ["weights", "mesh", "warmup-sidecar"]


def test_without_launcher_the_command_stays_and_the_cache_variables_come():
    spec = made("without launcher")
    assert "command" not in of_engine(spec)
    # What the user has set stays.
    assert variables(of_engine(spec)) == {"A_CACHE": "/mine", "B_CACHE": "/var/cache/engine/b"}
    assert variables(of_sidecar(spec))["WARMUP_LAUNCHER"] == "false"
    assert variables(of_sidecar(spec))["WARMUP_IMAGE"].endswith("@sha256:" + "b" * 64)
    assert of_engine(spec)["lifecycle"]["preStop"]["exec"]["command"] == ["sh", "-c", "sleep 15"]
    assert of_sidecar(spec)["startupProbe"]["failureThreshold"] == 60 + 60 + budgets.BESIDE_S


def test_without_native_sidecars_the_launcher_is_laid_by_an_init_container():
    spec = made("without native sidecars")
    assert [container["name"] for container in spec["initContainers"]] == ["warmup-launcher"]
    assert [container["name"] for container in spec["containers"]] == ["warmup-sidecar", "vllm"]
    assert "restartPolicy" not in of_sidecar(spec)
    assert "startupProbe" not in of_sidecar(spec)
    assert variables(of_engine(spec))["WARMUP_LAUNCHER_GRACE_S"] == "60"


def test_without_launcher_and_native_sidecars_an_init_container_restores_before_the_engine_starts():
    spec = made("without launcher and native sidecars")
    [first] = spec["initContainers"]
    assert (first["name"], first["args"]) == ("warmup-restore", ["restore"])
    assert [container["name"] for container in spec["containers"]] == ["warmup-sidecar", "vllm"]
    for field in ("image", "env", "volumeMounts", "securityContext"):
        assert first[field] == of_sidecar(spec)[field]
    assert not {"ports", "startupProbe", "readinessProbe", "livenessProbe", "restartPolicy"} & set(first)


# --- probes and ends -------------------------------------------------------------------------------------------------


def test_a_liveness_probe_gets_a_startup_probe_that_covers_a_cold_start():
    spec = made("liveness probe")
    probe = of_engine(spec)["startupProbe"]
    assert probe["httpGet"] == pod_shapes.HEALTH["httpGet"]
    assert budgets.allowed_s(probe) >= budgets.engine_start_s(60, 0, budgets.ENGINE_COLD_START_S)
    assert of_engine(spec)["livenessProbe"]["failureThreshold"] == 3


def test_a_startup_probe_that_is_too_short_is_made_long_enough():
    assert budgets.allowed_s(of_engine(made("startup probe"))["startupProbe"]) >= 1890


def test_a_long_startup_probe_gets_what_the_launcher_waits():
    assert budgets.allowed_s(of_engine(made("long startup probe"))["startupProbe"]) >= 7200 + budgets.launcher_wait_s(
        60, 0
    )


def test_an_engine_that_nobody_ends_gets_no_probe():
    assert "startupProbe" not in of_engine(made("args only"))


@pytest.mark.parametrize(("name", "seconds"), [("args only", 60), ("settings", 340), ("pre-stop hook", 100)])
def test_the_grace_period_covers_hook_drain_and_two_ends(name: str, seconds: int):
    assert made(name)["terminationGracePeriodSeconds"] == seconds


def test_a_longer_grace_period_stays():
    assert made(pod(engine(), terminationGracePeriodSeconds=600))["terminationGracePeriodSeconds"] == 600


# --- users, ports, secrets, volumes ------------------------------------------------------------------------------------


def test_a_group_that_is_there_is_the_sidecars_too():
    spec = made("read-only root")
    assert spec["securityContext"] == {"fsGroup": 1234, "runAsUser": 1000}
    assert of_sidecar(spec)["securityContext"]["runAsGroup"] == 1234


def test_a_pod_without_a_group_gets_one_without_walks_over_volumes():
    spec = made("args only")
    assert spec["securityContext"] == {"fsGroup": 2000, "fsGroupChangePolicy": "OnRootMismatch"}
    assert of_sidecar(spec)["securityContext"]["runAsUser"] == 10001


@pytest.mark.parametrize(("name", "port"), [("args only", 9797), ("host network", 9800), ("port taken", 9798)])
def test_the_port_is_free_and_follows_the_engines_on_the_hosts_network(name: str, port: int):
    sidecar = of_sidecar(made(name))
    assert sidecar["ports"][0]["containerPort"] == port
    assert variables(sidecar)["WARMUP_LISTEN"] == f"0.0.0.0:{port}"


def test_a_key_in_a_secret_is_read_by_the_sidecar_from_a_file():
    spec = made("key in a secret")
    [volume] = [volume for volume in spec["volumes"] if "secret" in volume]
    assert volume["secret"]["secretName"] == "engine"
    assert volume["secret"]["items"] == [{"key": "api-key", "path": "api-key"}]
    assert variables(of_sidecar(spec))["WARMUP_API_KEY_FILE"] == "/run/secrets/warmup-api-key/api-key"


def test_a_key_in_the_pod_itself_is_warned_of_and_not_copied():
    before = labelled(pod(engine(args=["m", "--api-key", "sekret"])))
    answer = ask(before)
    assert any("api-key-secret" in warning for warning in answer.warnings)
    assert "sekret" not in str(of_sidecar(patched(before, answer.body)["spec"]))


def test_a_live_cache_of_the_pods_own_is_used():
    spec = made("own live cache")
    assert {"name": "cache", "mountPath": "/var/cache/engine"} in of_sidecar(spec)["volumeMounts"]
    assert "warmup-live-cache" not in [volume["name"] for volume in spec["volumes"]]


def test_a_store_of_a_claim_is_mounted_read_only_where_that_was_asked_for():
    spec = made("store of a claim")
    assert {"name": "warmup-store", "mountPath": "/mnt/store", "readOnly": True} in of_sidecar(spec)["volumeMounts"]
    assert {"name": "warmup-store", "persistentVolumeClaim": {"claimName": "kernels", "readOnly": True}} in spec[
        "volumes"
    ]
    assert variables(of_sidecar(spec))["WARMUP_STORE_MODE"] == "read-only"


def test_without_a_store_it_is_said():
    assert any("No store was chosen" in warning for warning in ask(labelled(pod_shapes.INJECTED["args only"])).warnings)


def test_the_readiness_gate_brings_a_token_for_the_sidecar_alone():
    spec = made("readiness gate")
    assert spec["readinessGates"] == [{"conditionType": "warmup-sidecar.io/engine-warm"}]
    assert variables(of_sidecar(spec))["WARMUP_READINESS_GATE"] == "true"
    assert [container["name"] for container in containers(spec) if "warmup-token" in str(container)] == [
        "warmup-sidecar"
    ]


def test_golden_files_come_from_a_config_map_into_the_sidecar_alone():
    spec = made("golden files")
    given = variables(of_sidecar(spec))
    assert given["WARMUP_GOLDEN"] == "/etc/warmup/golden/golden.yaml"
    assert given["WARMUP_FALLBACKS"].startswith("--kv-cache-dtype")
    assert {"name": "warmup-golden", "configMap": {"name": "warmup-golden", "optional": True}} in spec["volumes"]
    assert [each["name"] for each in containers(spec) if "/etc/warmup/golden" in str(each)] == ["warmup-sidecar"]


def test_a_worker_of_a_group_knows_its_leader():
    assert variables(of_sidecar(made("group of pods")))["LWS_LEADER_ADDRESS"] == "engine-0.engine"


# --- options -----------------------------------------------------------------------------------------------------------


def test_an_annotation_counts_more_than_the_injectors_file():
    options = from_file({"image": "a:1", "store": "pvc:all", "settings": {"warm_budget_s": 900, "events": True}})
    given = pod(engine(), annotations={f"{DOMAIN}/store": "pvc:mine", f"setting.{DOMAIN}/warm_budget_s": "60"})
    spec = made(given, options)
    assert variables(of_sidecar(spec))["WARMUP_WARM_BUDGET_S"] == "60"
    assert variables(of_sidecar(spec))["WARMUP_EVENTS"] == "true"
    assert "mine" in str(spec["volumes"])


@pytest.mark.parametrize(
    ("annotation", "value", "part"),
    [
        (f"{DOMAIN}/strore", "pvc:a", "there is no such option"),
        (f"{DOMAIN}/image", "evil:1", "there is no such option"),
        (f"{DOMAIN}/store", "nfs://a", "should match"),
        (f"{DOMAIN}/engine-start-s", "soon", "number"),
        (f"{DOMAIN}/engine-command", '["a"', "engine_command"),
        (f"setting.{DOMAIN}/warm_budget", "1", "not a setting"),
        (f"setting.{DOMAIN}/warm_budget_s", "-1", "greater than"),
        (f"setting.{DOMAIN}/listen", "0.0.0.0:1", "decided by the injector"),
    ],
)
def test_an_annotation_that_can_not_be_used_is_named_and_the_pod_gets_the_sidecar(
    annotation: str, value: str, part: str
):
    before = labelled(pod(engine(), annotations={annotation: value}))
    answer = ask(before)
    assert answer.outcome == "injected"
    [warning] = [each for each in answer.warnings if each.startswith(f"{annotation} is left out")]
    assert part in warning


def test_the_version_that_was_put_in_is_noted():
    before = labelled(pod_shapes.INJECTED["args only"])
    assert patched(before, ask(before).body)["metadata"]["annotations"] == {INJECTED: "0.1.0"}


def test_a_bug_of_the_webhook_admits_the_pod():
    class Broken(Reviewer):
        def _answer(self, uid: str, request: Json) -> Answer:
            raise ZeroDivisionError

    answer = Broken(OPTIONS, CACHES, "0.1.0").answer(review(labelled(pod_shapes.INJECTED["args only"])))
    assert answer.outcome == "failed"
    assert answer.body["response"]["allowed"] is True


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"a": 1}, {"a": 1, "b/c~d": {"e": []}}),
        ({"a": [1, 2]}, {"a": [1, 3, 4]}),
        ({"a": [1, 2]}, {"a": [2]}),
        ({"a": {"b": 1}, "c": 2}, {"a": {}}),
        ({"a": []}, {"a": [{"b": 1}]}),
    ],
)
def test_a_difference_applied_gives_what_was_meant(before: Json, after: Json):
    assert applied(before, difference(before, after)) == after
