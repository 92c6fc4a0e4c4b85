"""Where an engine answers by its command against WARMUP_ENGINE_URL: what is told, what to do, and what is left alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sidecar.engines.address import disagreements
from sidecar.engines.argv import hints_from_argv
from sidecar.engines.outside import Place, hints_of, launcher_place
from sidecar.kube.facts import pod_facts
from sidecar.kube.injection.engine import url_of
from sidecar.kube.injection.options import Options
from sidecar.launcher.facts import command_facts
from sidecar.lifecycle import Mode
from sidecar.supervisor import addressing
from sidecar.supervisor.observers import AttemptObserver
from tests.unit.supervised import ATTEMPT, make_pod
from tests.unit.test_cli_check import check
from tests.unit.test_supervisor_observers import Launcher

VLLM, SGLANG, TRTLLM = "vllm serve m", "python -m sglang.launch_server --model-path m", "trtllm-serve m"


def said(url: str, command: str, keyed: bool = False, **environment: str) -> str:
    return " ".join(disagreements(url, hints_from_argv(command.split(), environment), keyed))


@pytest.mark.parametrize(
    ("url", "command", "wrong", "right"),
    [
        ("http://127.0.0.1:8000", f"{VLLM} --port 8200", "port 8200 (argv --port)", "http://127.0.0.1:8200"),
        ("http://localhost:8200", VLLM, "no --port, so it listens on vLLM's port 8000", "http://localhost:8000"),
        ("http://127.0.0.1", f"{VLLM} --port=8000", "port 8000", "http://127.0.0.1:8000"),
        ("http://127.0.0.1:8000", SGLANG, "SGLang's port 30000", "http://127.0.0.1:30000"),
        ("http://10.0.0.5:30000", SGLANG, "at 127.0.0.1 alone (SGLang's default)", "http://127.0.0.1:30000"),
        ("http://127.0.0.1:8000", f"{TRTLLM} --port 8001", "port 8001", "http://127.0.0.1:8001"),
        ("http://127.0.0.1:8000", f"{VLLM} --host 10.0.0.5", "at 10.0.0.5 alone (argv --host)", "http://10.0.0.5:8000"),
        ("http://[::1]:8000", f"{VLLM} --host 127.0.0.1", "at 127.0.0.1 alone", "http://127.0.0.1:8000"),
        ("http://127.0.0.1:8000", f"{VLLM} --host ::1", "at ::1 alone", "http://[::1]:8000"),
        (
            "http://127.0.0.1:8000",
            f"{VLLM} --ssl-certfile c.pem",
            "TLS (argv --ssl-certfile)",
            "https://127.0.0.1:8000",
        ),
        ("http://127.0.0.1:30000", f"{SGLANG} --ssl-keyfile k", "TLS (argv --ssl-keyfile)", "https://127.0.0.1:30000"),
        ("https://127.0.0.1:8000", VLLM, "no TLS (no --ssl-certfile)", "http://127.0.0.1:8000"),
        ("http://127.0.0.1:8000", f"{VLLM} --port 8200 --ssl-keyfile k", "port 8200", "https://127.0.0.1:8200"),
    ],
)
def test_a_url_that_is_not_the_engines_is_told_with_both_values_and_the_right_one(
    url: str, command: str, wrong: str, right: str
):
    found = said(url, command)
    assert f"WARMUP_ENGINE_URL is {url}," in found
    assert wrong in found
    assert f"Set WARMUP_ENGINE_URL={right} for the sidecar" in found


@pytest.mark.parametrize(
    ("url", "command"),
    [
        ("http://127.0.0.1:8000", VLLM),
        ("http://127.0.0.1:8200", f"{VLLM} --port 8200 --host 0.0.0.0"),
        ("http://localhost:8000", f"{VLLM} --host 127.0.0.1"),
        ("http://127.0.0.1:8000", f"{VLLM} --host :: --root-path /svc"),
        ("https://127.0.0.1:8000", f"{VLLM} --ssl-keyfile k --ssl-certfile c"),
        ("http://engine.default.svc:80", f"{VLLM} --port 8200"),
        ("https://127.0.0.1:9000", f"{VLLM} --config engine.yaml"),
        ("http://127.0.0.1:9000", f"{VLLM} --port $PORT"),
        ("http://127.0.0.1:9000", "python3 serve.py"),
        ("http://127.0.0.1:8000", f"{VLLM} --headless --port 9000"),
        ("http://127.0.0.1:9000", "python -m dynamo.vllm --model m --port 8000"),
    ],
)
def test_what_agrees_or_is_left_open_by_the_command_is_no_contradiction(url: str, command: str):
    assert said(url, command) == ""


def test_a_script_of_several_servers_leaves_open_whose_port_is_whose():
    two = ["bash", "-c", f"nginx --port 9000 & exec {VLLM} --port 8200"]
    assert disagreements("http://127.0.0.1:9000", hints_from_argv(two, {}), False) == ()
    alone = ["bash", "-c", f"exec {VLLM} --port 8200"]
    assert disagreements("http://127.0.0.1:9000", hints_from_argv(alone, {}), False) != ()


@pytest.mark.parametrize(
    ("command", "url"),
    [
        (("sh", "-c", f"ray start --head --port=6379 && {VLLM}"), "http://127.0.0.1:8000"),
        (("sh", "-c", "ray start --head --port=6379 --block"), "http://127.0.0.1:8000"),
        (("sh", "-c", f"python exporter.py --port 9000 & {VLLM}"), "http://127.0.0.1:8000"),
        (("sh", "-c", f"{VLLM} & sleep 9; vllm bench serve --host 10.0.0.9"), "http://127.0.0.1:8000"),
        (("sh", "-c", f"{VLLM} & {VLLM} --port 8001"), "http://127.0.0.1:8000"),
        (("sh", "-c", f"if x; then {VLLM} --port 8001; else {VLLM}; fi"), "http://127.0.0.1:8000"),
        (("sh", "-c", f'ARGS="--port 8001"\nexec {VLLM} $ARGS'), "http://127.0.0.1:8001"),
        (("bash", "-c", 'a=(m --port 8001)\nvllm serve "${a[@]}"'), "http://127.0.0.1:8001"),
        (("bash", "-c", f"{VLLM} --port $((8000 + RANK))"), "http://127.0.0.1:8003"),
        (("sh", "-c", f"cat <<E\nit's --host 10.0.0.9\nE\n{VLLM}"), "http://127.0.0.1:8001"),
        (("vllm", "serve", "m", ""), "http://127.0.0.1:8001"),
        (("trtllm-serve", "disaggregated_mpi_worker", "-c", "x.yaml"), "http://127.0.0.1:8001"),
        ((*VLLM.split(), "--api-key", ""), "http://127.0.0.1:8000"),
    ],
)
def test_what_a_script_leaves_open_and_what_is_of_its_other_commands_is_held_against_nothing(
    command: tuple[str, ...], url: str
):
    assert disagreements(url, hints_from_argv(command, {}), False) == ()


@pytest.mark.parametrize(
    "command",
    [
        ("tini", "--", "bash", "-c", f"{VLLM} --port 8001"),
        ("python3", "/warmup/launcher.py", "--", "zsh", "-lc", "--", f"exec {VLLM} --port 8001"),
        ("sh", "-c", f"numactl -N0 bash -c '{VLLM} --port 8001' 2>&1 | tee log"),
        ("sh", "-c", 'pip install x  # don\'t\nexec "$@"', "--", *VLLM.split(), "--port", "8001"),
        ("sh", "-c", 'exec "$0" "$@"', *VLLM.split(), "--port", "8001"),
    ],
)
def test_the_engines_command_is_found_behind_whatever_starts_its_shell(command: tuple[str, ...]):
    hints = hints_from_argv(command, {})
    assert (hints["engine"].value, hints["root"].value, hints["port"].value) == ("vllm", "m", 8001)
    assert disagreements("http://127.0.0.1:8000", hints, False) != ()


@pytest.mark.parametrize(
    ("script", "port"),
    [
        (f"ray start --head --port=6379; {VLLM}", 8000),
        (f"{VLLM} --port 8001 \\\n  --host 0.0.0.0 & python exporter.py --port 9000", 8001),
        (f"{VLLM} --port=$PORT", 8005),
        (f"{VLLM} $ARGS", 8000),
        ("start.sh --port 9000", 9000),
    ],
)
def test_the_url_that_the_webhook_sets_is_the_engines_own(script: str, port: int):
    container = {
        "command": ["bash", "-c", script],
        "env": [{"name": "PORT", "value": "8005"}],
        "ports": [{"containerPort": 8000}],
    }
    url = url_of(container, Options())
    assert url == f"http://127.0.0.1:{port}"
    assert disagreements(url, hints_from_argv(container["command"], {}), False) == ()


def test_an_empty_key_is_none_in_the_launchers_facts_too(tmp_path: Path):
    (tmp_path / "c.yaml").write_text('api-key: ""\n')
    command = [*VLLM.split(), "--api-key", "", "--config", str(tmp_path / "c.yaml")]
    facts = command_facts(command, {"VLLM_API_KEY": ""}, {})
    assert disagreements("http://127.0.0.1:8000", hints_of([launcher_place(facts)]), False) == ()


def test_a_worker_of_dynamo_answers_at_its_system_port():
    worker = "python -m dynamo.vllm --model m"
    assert "http://127.0.0.1:8081 " in said("http://127.0.0.1:8000", worker, DYN_SYSTEM_PORT="8081")
    assert said("http://127.0.0.1:8081", worker, DYN_SYSTEM_PORT="8081") == ""


@pytest.mark.parametrize("command", [f"{VLLM} --api-key s3cret", f"{SGLANG} --port 8000 --api-key s3cret"])
def test_an_engine_with_a_key_and_a_sidecar_without_one_are_told_before_the_first_refusal(command: str):
    found = said("http://127.0.0.1:8000", command)
    assert "asks for an API key (argv --api-key) and WARMUP_API_KEY_FILE is empty" in found
    assert "s3cret" not in found
    assert said("http://127.0.0.1:8000", command, keyed=True) == ""
    assert "environment VLLM_API_KEY" in said("http://127.0.0.1:8000", VLLM, VLLM_API_KEY="sha256:0")


def test_an_engine_behind_a_socket_has_no_port_to_ask():
    assert "Take --uds out" in said("http://127.0.0.1:8000", f"{VLLM} --uds /tmp/s --port 9")


def test_a_running_engine_elsewhere_is_a_notice_until_another_command_agrees(tmp_path: Path):
    pod = make_pod(tmp_path, engine_url="http://127.0.0.1:8000")
    assert pod.control is not None
    launcher = Launcher(pod.control.path, ATTEMPT)
    launcher.write("facts.json", {"argv": f"{VLLM} --port 8200".split(), "environment": {}})
    launcher.start()
    AttemptObserver(pod, pod.control, lambda _event: None).look()
    [notice] = pod.board.degraded
    assert "Set WARMUP_ENGINE_URL=http://127.0.0.1:8200" in notice
    pod.facts = {"argv": VLLM.split(), "environment": {}}
    addressing.compare(pod)
    assert pod.board.degraded == ()


def test_without_a_launcher_the_pods_spec_tells_and_a_worker_of_a_group_asks_its_leader(tmp_path: Path):
    spec = Place("the Pod's spec", tuple(f"{VLLM} --port 8200".split()))
    pod = make_pod(tmp_path, mode=Mode.BESIDE, engine_url="http://127.0.0.1:8000")
    pod.places, pod.follows = (spec,), "http://leader:9797"
    addressing.compare(pod)
    assert pod.board.degraded == ()
    pod.follows = ""
    addressing.compare(pod)
    assert "port 8200 (the Pod's spec, argv --port)" in pod.board.degraded[0]


def test_a_port_that_the_spec_takes_from_elsewhere_is_open_and_the_other_arguments_are_read():
    command = [*VLLM.split(), "--port=$(PORT)", "--max-num-seqs", "8"]
    env = [{"name": "PORT", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "p"}}}]
    found = pod_facts({"spec": {"containers": [{"name": "vllm", "command": command, "env": env}]}})
    assert found is not None
    hints = hints_from_argv(found.argv, {})
    assert hints["max_num_seqs"].value == 8
    assert disagreements("http://127.0.0.1:9000", hints, False) == ()


async def test_check_reads_the_command_that_the_launcher_saw(tmp_path: Path):
    launcher = Launcher(tmp_path / "run", ATTEMPT)
    launcher.write("facts.json", {"argv": f"{VLLM} --port 8200 --api-key x".split(), "environment": {}})
    ended, found = await check(tmp_path, WARMUP_ENGINE_URL="http://127.0.0.1:9")
    assert ended.code == 2
    said: list[str] = [each["sentence"] for each in _findings(ended) if each["what"] == "engine's command"]
    assert "Set WARMUP_ENGINE_URL=http://127.0.0.1:8200" in said[0]
    assert "WARMUP_API_KEY_FILE is empty" in said[1]
    (tmp_path / "key").write_text("x")
    agreeing = {"WARMUP_ENGINE_URL": "http://127.0.0.1:8200", "WARMUP_API_KEY_FILE": str(tmp_path / "key")}
    ended, found = await check(tmp_path, **agreeing)
    assert found["engine's command"]["level"] == "good"
    assert "listens on port 8200" in found["engine's command"]["sentence"]


def _findings(ended: Any) -> list[dict[str, str]]:
    found: list[dict[str, str]] = json.loads(ended.out)["findings"]
    return found
