"""Facts about real interpreters, packages and compilers, learned without importing a package."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from sidecar.launcher import config_file, facts, privacy


def script(path: Path, head: str) -> Path:
    """Write an executable with these first lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(head)
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    "command",
    [
        ["{bin}/vllm", "serve", "m"],
        ["vllm", "serve", "m"],
        ["{bin}/long", "serve"],
        ["{bin}/python3.11", "-m", "vllm.entrypoints.openai.api_server"],
        ["/bin/bash", "-c", "ulimit -n 65535; exec vllm serve m --port 8000"],
        ["env", "A=1", "vllm", "serve"],
        ["numactl", "--cpunodebind=0", "vllm", "serve"],
    ],
    ids=lambda command: command[0],
)
def test_the_engines_interpreter_is_found_through_what_starts_it(tmp_path: Path, command: list[str]):
    folder = tmp_path / "venv" / "bin"
    folder.mkdir(parents=True)
    (folder / "python3.11").symlink_to(sys.executable)
    script(folder / "vllm", f"#!{folder}/python3.11\nimport vllm\n")
    script(folder / "long", f"#!/bin/sh\n'''exec' \"{folder}/python3.11\" \"$0\" \"$@\"\n' '''\nimport vllm\n")
    script(tmp_path / "other" / "numactl", '#!/bin/sh\nexec "$@"\n')
    path = f"{tmp_path}/other:{folder}:/usr/bin:/bin"
    words = [word.format(bin=folder) for word in command]
    assert facts.interpreter(words, path) == f"{folder}/python3.11"


def test_an_env_shebang_is_looked_up_in_the_path(tmp_path: Path):
    python = script(tmp_path / "bin" / "python3", "#!/bin/sh\n")
    engine = script(tmp_path / "engine", "#!/usr/bin/env python3\n")
    assert facts.interpreter([str(engine)], str(python.parent)) == str(python)


def test_a_binary_engine_falls_back_to_python3_of_the_path(tmp_path: Path):
    python = script(tmp_path / "python3", "#!/bin/sh\n")
    assert facts.interpreter(["/bin/true"], str(tmp_path)) == str(python)
    assert facts.interpreter(["/bin/true"], "/nowhere") == sys.executable


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a venv with a few distributions in it."""
    root = tmp_path_factory.mktemp("engine")
    venv.create(root, with_pip=False, symlinks=True)
    site = next(root.glob("lib/python3*/site-packages"))
    for name, record in (
        ("torch-2.13.0+cpu", "torch/__init__.py,sha256=x,1\n"),
        ("NVIDIA_cutlass.dsl-4.8.0", "a,,\n"),
        ("requests-2.0", "b,,\n"),
    ):
        (site / f"{name}.dist-info").mkdir()
        (site / f"{name}.dist-info" / "RECORD").write_text(record)
    (site / "vllm-0.33.0.dist-info").mkdir()
    (site / "vllm-0.33.0.dist-info" / "direct_url.json").write_text(
        '{"url": "file:///x", "dir_info": {"editable": true}}'
    )
    # Importing it would be noticed.
    (site / "torch").mkdir()
    (site / "torch" / "__init__.py").write_text("raise SystemExit('imported')")
    return root


def test_packages_are_read_from_the_engines_interpreter_with_the_digest_of_their_record(engine: Path):
    found = facts.collect_facts([f"{engine}/bin/python", "-m", "vllm"], {"PATH": "/usr/bin:/bin"}, {})
    digest = hashlib.sha256(b"torch/__init__.py,sha256=x,1\n").hexdigest()
    installed = found["packages"]["torch"].pop("installed")
    assert installed > 1_600_000_000
    assert found["packages"]["torch"] == {"version": "2.13.0+cpu", "record": digest}
    assert found["packages"]["nvidia-cutlass-dsl"]["version"] == "4.8.0"
    assert found["packages"]["vllm"] == {"version": "0.33.0", "record": None, "editable": True}
    assert "requests" not in found["packages"]
    assert found["python"]["prefix"] == str(engine)
    assert found["python"]["version"] == ".".join(map(str, sys.version_info[:3]))
    assert found["libc"]


def test_the_first_entry_of_the_import_path_wins(tmp_path: Path):
    for folder, version in (("first", "1"), ("second", "2")):
        (tmp_path / folder / f"triton-{version}.dist-info").mkdir(parents=True)
    found = facts.packages([str(tmp_path / name) for name in ("missing", "first", "second")])
    assert found == {"triton": {"version": "1", "record": None}}


def test_compilers_tell_their_versions(tmp_path: Path):
    nvcc = script(
        tmp_path / "cuda" / "bin" / "nvcc", "#!/bin/sh\necho 'Cuda compilation tools, release 13.0, V13.0.88'\n"
    )
    cxx = script(tmp_path / "my-g++", "#!/bin/sh\necho 'my-g++ (X) 12.2.0'; echo more\n")
    environment = {"PATH": "/usr/bin:/bin", "CUDA_HOME": str(tmp_path / "cuda"), "CXX": f"{cxx} -m64"}
    found = facts.collect_facts(["/bin/true"], environment, {})["toolchain"]
    assert (found["nvcc"], found["nvcc_path"], found["cuda_home"]) == ("13.0.88", str(nvcc), str(tmp_path / "cuda"))
    assert found["cxx"] == "my-g++ (X) 12.2.0"


def test_a_compiler_that_hangs_costs_seconds_and_one_fact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(facts, "FACTS_S", 0.3)
    script(tmp_path / "g++", "#!/bin/sh\nexec /bin/sleep 60\n")
    script(tmp_path / "python3", "#!/bin/sh\necho no json\n")
    found = facts.collect_facts(["/bin/true"], {"PATH": str(tmp_path)}, {})
    assert found["toolchain"]["cxx"] is None
    assert found["python"]["version"] is None


def test_an_interpreter_whose_sitecustomize_prints_is_understood(tmp_path: Path):
    (tmp_path / "sitecustomize.py").write_text("print('hello')")
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(tmp_path)}
    assert facts.collect_facts([sys.executable], environment, {})["python"]["prefix"] == sys.prefix


def test_the_part_in_a_distributed_engine_is_read_from_arguments_and_environment():
    argv = ["vllm", "serve", "m", "--node-rank", "1", "--nnodes=2", "-tp", "8", "--headless", "--port", "1"]
    found = facts.world(argv, {"LWS_WORKER_INDEX": "1", "VLLM_DP_RANK": "3", "HOSTNAME": "x"})
    assert found == {
        "node_rank": "1",
        "nnodes": "2",
        "tp": "8",
        "headless": "true",
        "LWS_WORKER_INDEX": "1",
        "VLLM_DP_RANK": "3",
    }


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        (["--tokenizer", "t", "--max-num-batched-tokens", "8192"], None),
        (["--kv-cache-dtype", "fp8"], None),
        (["--kv-transfer-config", '{"kv_connector": "X", "password": "p w"}'], "--kv-transfer-config"),
        (["--hf-token=abcdefgh"], "--hf-token"),
        (["VLLM_API_KEY=abcdefgh", "vllm"], "VLLM_API_KEY"),
        (["--model-loader-extra-config", '{"s3_secret_access_key":"abcdefgh"}'], "s3_secret_access_key"),
        (['--additional-config={"token": "abcdefgh"}'], "token"),
        (["sh", "-c", "A=1 vllm serve m --api_key 'abcdefgh' --port $PORT && echo x"], "--port $PORT && echo x"),
        (["sh", "-c", 'vllm serve m --kv-transfer-config \'{"a": "b c"}\' 2>&1'], "2>&1"),
    ],
)
def test_only_secrets_and_connector_configurations_are_hidden(argv: list[str], shown: str | None):
    words, secrets = privacy.without_secrets(argv)
    if shown is None:
        assert (words, secrets) == (argv, set())
    else:
        assert "sha256:" in " ".join(words)
        assert shown in " ".join(words)
        assert secrets
        assert not any(secret in " ".join(words) for secret in secrets)


def test_digests_are_the_same_in_every_pod_and_differ_by_name():
    assert privacy.digest("A_KEY", "x") == privacy.digest("A_KEY", "x") != privacy.digest("B_KEY", "x")


def test_the_compiler_of_this_machine_is_found():
    if shutil.which("g++") is None:
        pytest.skip("no g++ here")
    first = subprocess.run(["g++", "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0]
    assert facts.collect_facts(["/bin/true"], {"PATH": "/usr/bin:/bin"}, {})["toolchain"]["cxx"] == first


def test_all_keys_behind_one_option_are_hidden_however_it_is_spelt():
    for option in ("--api-key", "--api_key", "--api-k"):
        words, secrets = privacy.without_secrets(["vllm", "serve", option, "first-key", "second-key", "--port", "1"])
        assert secrets == {"first-key", "second-key"}
        assert words[-2:] == ["--port", "1"]
        assert not secrets & set(words)


def test_a_secret_is_hidden_in_output_without_the_quotes_of_the_script_it_came_in():
    hidden = privacy.secret_values(["sh", "-c", 'vllm serve m --api-key "abcdefgh"'], {})
    assert hidden == ["abcdefgh"]


def test_variables_hide_secrets_in_addresses_and_in_json():
    environment = {
        "VLLM_S3_URL": "https://user:hunter2@host/x",
        "VLLM_AUTH": "hunter2",
        "VLLM_JSON": '{"a": [{"apiKey": "hunter2", "size": 1}]}',
        "VLLM_TOKEN_FILE": "/run/token",
    }
    shown = facts.relevant_environment(environment)
    assert "hunter2" not in str(shown)
    assert shown["VLLM_S3_URL"].startswith("https://sha256:")
    assert shown["VLLM_S3_URL"].endswith("@host/x")
    assert '"size": 1' in shown["VLLM_JSON"]
    assert shown["VLLM_TOKEN_FILE"] == "/run/token"
    assert "hunter2" in privacy.secret_values([], {"VLLM_S3_URL": environment["VLLM_S3_URL"]})


def test_the_part_in_a_distributed_engine_is_read_inside_a_shells_script_too(tmp_path: Path):
    config = tmp_path / "x.yaml"
    config.write_text("tensor-parallel-size: 8")
    argv = [
        "bash",
        "-lc",
        f"ulimit -n 65535; exec vllm serve m --tensor-parallel 8 --node_rank=1 --config {config} | tee x",
    ]
    assert facts.world(argv, {}) == {"tensor_parallel": "8", "node_rank": "1"}
    assert set(config_file.digests(argv)) == {"--config"}


#: Two parts of one GPU and a whole one, as `nvidia-smi -L` prints them (NVIDIA MIG user guide).
LISTING = """GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-aaaa1111)
  MIG 3g.40gb     Device  0: (UUID: MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f)
  MIG 1g.10gb+me  Device  1: (UUID: MIG-cba663e8-9bed-5b25-b243-5985ef7c9beb)
GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-bbbb2222)
"""


@pytest.mark.parametrize(
    ("listing", "parts"),
    [
        (LISTING, [["3g.40gb", "1g.10gb+me"], None]),
        # nvidia-smi came too late, or is not there: a part is never taken for the whole.
        ("", [["of unknown size"], ["of unknown size"]]),
        # The machine has parts, but of a GPU that is another container's.
        ("GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-aaaa1111)\n", [None, ["of unknown size"]]),
        (None, [None, None]),
    ],
)
def test_parts_of_a_gpu_are_told_with_their_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listing: str | None, parts: list[list[str] | None]
):
    for bus, uuid in (("0000:18:00.0", "GPU-aaaa1111"), ("0000:2a:00.0", "GPU-bbbb2222")):
        (tmp_path / bus).mkdir()
        (tmp_path / bus / "information").write_text(f"Model: \t NVIDIA H100 80GB HBM3\nGPU UUID: \t {uuid}\n")
    monkeypatch.setattr(facts, "GPUS", str(tmp_path))
    found = facts.gpus(listing)
    assert [one.get("mig") for one in found] == parts
    assert {one["name"] for one in found} == {"NVIDIA H100 80GB HBM3"}


@pytest.mark.parametrize(
    ("environment", "folder", "asked"),
    [
        ({}, "", False),
        ({"NVIDIA_VISIBLE_DEVICES": "GPU-aaaa1111"}, "gpu0", False),
        ({"NVIDIA_VISIBLE_DEVICES": "MIG-c6d4f1ef"}, "", True),
        ({"CUDA_VISIBLE_DEVICES": "MIG-c6d4f1ef"}, "", True),
        ({}, "gpu0/mig/gi1", True),
    ],
)
def test_only_where_there_are_parts_of_a_gpu_their_sizes_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], folder: str, asked: bool
):
    (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    monkeypatch.setattr(facts, "CAPABILITIES", str(tmp_path))
    assert facts.lists_instances(environment) == asked


def test_what_nvidia_smi_lists_becomes_a_fact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    script(tmp_path / "bin/nvidia-smi", f"#!/bin/sh\ncat <<'END'\n{LISTING}END\n")
    (tmp_path / "gpus/0000:18:00.0").mkdir(parents=True)
    (tmp_path / "gpus/0000:18:00.0/information").write_text("Model: NVIDIA H100 80GB HBM3\nGPU UUID: GPU-aaaa1111\n")
    monkeypatch.setattr(facts, "GPUS", str(tmp_path / "gpus"))
    environment = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "NVIDIA_VISIBLE_DEVICES": "MIG-c6d4f1ef"}
    monkeypatch.setenv("PATH", environment["PATH"])
    [found] = facts.collect_facts(["true"], environment, {})["gpus"]
    assert found["mig"] == ["3g.40gb", "1g.10gb+me"]
