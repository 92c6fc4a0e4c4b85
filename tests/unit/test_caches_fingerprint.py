"""Claims about the facts that make a key."""

from __future__ import annotations

from typing import Any

import pytest

from sidecar.caches import normalise
from sidecar.caches import privacy as last_gate
from sidecar.caches.families import Ranks
from sidecar.caches.fingerprint import FACTS, compare, cuda_majors, fingerprint, key_of
from sidecar.launcher import facts as launchers_facts
from sidecar.launcher import privacy as launchers
from tests.fakes.live_cache import facts

LIVE = "/var/cache/engine"
BASE = fingerprint(facts(), LIVE)
TOOLCHAIN: dict[str, Any] = facts()["toolchain"]


def argv(*words: str) -> dict[str, Any]:
    return facts(argv=["vllm", "serve", "/models/q", "--max-model-len", "2048", *words])


def env(**given: str) -> dict[str, Any]:
    return facts(environment={"VLLM_USE_AOT_COMPILE": "0", **given})


@pytest.mark.parametrize(
    "same",
    [
        facts(argv=["/opt/venv/bin/vllm", "serve", "/models/q", "--max-model-len=2048", "--port=9000"]),
        facts(argv=["vllm", "serve", "--port", "9000", "/models/q", "--max_model_len", "2048"]),
        argv("--host", "0.0.0.0", "--api-key", "one", "two", "--served-model-name", "a", "b"),
        argv("--uvicorn-log-level", "debug", "--disable-log-stats"),
        env(VLLM_HOST_IP="10.9.9.9", VLLM_API_KEY="secret", VLLM_LOGGING_LEVEL="DEBUG"),
        env(VLLM_SERVICE_HOST="10.96.0.7", VLLM_PORT="tcp://10.96.0.7:8000", VLLM_PORT_8000_TCP_ADDR="10.96.0.7"),
        env(VLLM_NIXL_SIDE_CHANNEL_HOST="10.1.2.3", NVIDIA_VISIBLE_DEVICES="GPU-8a1f"),
        env(VLLM_CACHE_ROOT="/elsewhere", TRITON_CACHE_DIR="/t"),
        facts(uid=1000, gid=1000, cwd="/srv", attempt="2-2-bbbbbbbb"),
        facts(hostname="engine-7d9f8b6c5-x2x9z"),
        argv("--data-parallel-supervisor-port", "9000", "--log-level", "DEBUG", "--no-enable-log-requests"),
        argv("--chat-template", "/t.jinja", "--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
        argv("-dpa", "engine-0.engine", "-dpp", "13345"),
        env(VLLM_DP_MASTER_IP="10.0.0.9", VLLM_DP_MASTER_PORT="1", VLLM_HTTP_TIMEOUT_KEEP_ALIVE="9", MAX_JOBS="4"),
    ],
)
def test_what_is_harmless_makes_no_other_key(same: dict[str, Any]) -> None:
    assert compare(BASE.exact, fingerprint(same, LIVE).exact) == []
    assert fingerprint(same, LIVE).exact_key == BASE.exact_key


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (argv("--max-num-batched-tokens", "4096"), "argv.--max-num-batched-tokens"),
        (argv("--speculative-config", '{"num_speculative_tokens": 9}'), "argv.--speculative-config"),
        (argv("--enforce-eager"), "argv.--enforce-eager"),
        (facts(argv=["vllm", "serve", "--port", "8000", "/models/other", "--max-model-len", "2048"]), "argv.command"),
        (env(VLLM_SOMETHING_NEW="1"), "environment.VLLM_SOMETHING_NEW"),
        (env(VLLM_ATTENTION_BACKEND="FLASHINFER"), "environment.VLLM_ATTENTION_BACKEND"),
        (facts(home="/home/vllm"), "home"),
        (facts(cpu={"arch": "x86_64", "flags": "ffff"}), "cpu_flags"),
        (facts(driver={"version": "580.999"}), "driver"),
        (facts(gpus=[{"name": "NVIDIA H200", "index": 1}]), "gpus.1"),
        (facts(world={"LWS_WORKER_INDEX": "1"}), "world.LWS_WORKER_INDEX"),
        (argv("--node-rank", "1"), "argv.--node-rank"),
        (argv("-O3"), "argv.-O"),
        (argv("--device-ids", "1"), "argv.--device-ids"),
        (argv("--enable-expert-parallel"), "argv.--enable-expert-parallel"),
        (facts(argv_files={"--config": "abcd"}), "config_file.--config"),
        (env(CUDA_VISIBLE_DEVICES="0,1"), "environment.CUDA_VISIBLE_DEVICES"),
        (env(VLLM_ENGINE_READY_TIMEOUT_S="600"), "environment.VLLM_ENGINE_READY_TIMEOUT_S"),
        (env(XDG_CACHE_HOME="/x"), "environment.XDG_CACHE_HOME"),
    ],
)
def test_a_fact_of_the_model_changes_the_exact_key_alone(other: dict[str, Any], named: str) -> None:
    found = fingerprint(other, LIVE)
    assert found.exact_key != BASE.exact_key
    assert found.toolchain_key == BASE.toolchain_key
    assert named in {one.fact for one in compare(found.exact, BASE.exact)}


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (facts(packages={"vllm": {"version": "0.33.0", "record": "cd" * 32}}), "packages.vllm"),
        (facts(packages={"flashinfer-python": {"version": "0.6.12", "record": "ab"}}), "packages.flashinfer-python"),
        (facts(gpus=[{"name": "NVIDIA A10", "index": 0, "sm": "sm86"}]), "gpu_kinds"),
        (facts(python={"version": "3.12.3", "prefix": "/opt/venv", "abi": "cpython-312"}), "prefix"),
        (facts(toolchain={"nvcc": "12.9", "cuda_home": "/usr/local/cuda"}), "nvcc"),
        (facts(toolchain={**TOOLCHAIN, "cuda_home": "/usr/local/cuda-13.2"}), "cuda_home"),
        (facts(toolchain={**TOOLCHAIN, "nvcc_path": "/opt/nvcc"}), "nvcc_path"),
        (facts(python={"version": "3.12.3", "prefix": "/usr", "abi": "cpython-313"}), "python_abi"),
        (facts(image={"digest": "sha256:abc"}), "image"),
        (facts(libc="glibc 2.31"), "libc"),
        (facts(gpus=[{"name": "NVIDIA H100", "index": 0}]), "gpu_kinds"),
        (facts(driver={"version": "590.1"}), "driver_major"),
        (env(TORCH_CUDA_ARCH_LIST="9.0a"), "compilers.TORCH_CUDA_ARCH_LIST"),
    ],
)
def test_a_fact_of_the_toolchain_changes_both_keys(other: dict[str, Any], named: str) -> None:
    found = fingerprint(other, LIVE)
    assert found.exact_key != BASE.exact_key
    assert found.toolchain_key != BASE.toolchain_key
    assert named in {one.fact for one in compare(found.toolchain, BASE.toolchain)}


def test_another_live_cache_path_changes_both_keys() -> None:
    found = fingerprint(facts(), "/mnt/cache")
    assert found.exact_key != BASE.exact_key
    assert found.toolchain_key != BASE.toolchain_key


def test_gpus_of_one_sm_version_share_the_toolchain_key_where_it_is_known() -> None:
    h100 = fingerprint(facts(gpus=[{"name": "NVIDIA H100", "index": 0, "sm": "9.0"}]), LIVE)
    h200 = fingerprint(facts(gpus=[{"name": "NVIDIA H200", "index": 0, "sm": "9.0"}]), LIVE)
    assert h100.toolchain_key == h200.toolchain_key
    assert h100.exact_key != h200.exact_key


def test_secrets_are_never_stored_by_value() -> None:
    found = fingerprint(
        facts(
            argv=["vllm", "serve", "m", "--kv-transfer-config", '{"password": "hunter2"}'],
            environment={"VLLM_MY_TOKEN": "hunter2", "VLLM_S3_SECRET": "sha256:0123"},
        ),
        LIVE,
    )
    assert "hunter2" not in str(found)
    assert found.exact["environment.VLLM_S3_SECRET"] == "sha256:0123"


@pytest.mark.parametrize(
    "odd",
    [
        {},
        {"argv": "vllm", "environment": [], "packages": 3, "gpus": {"a": 1}, "world": [], "python": None},
        {"gpus": [7]},
    ],
)
def test_facts_of_unexpected_shape_count_as_away(odd: dict[str, Any]) -> None:
    assert len(fingerprint(odd, LIVE).exact_key) == 32


def test_a_stored_facts_file_can_be_checked_against_its_key() -> None:
    assert key_of("exact", BASE.exact) == BASE.exact_key
    assert key_of("toolchain", BASE.exact) != BASE.exact_key


def test_every_fact_says_why_it_matters_and_has_a_name_of_its_own() -> None:
    assert all(fact.why.endswith(".") for fact in FACTS)
    assert len({fact.name for fact in FACTS}) == len(FACTS)


def test_the_number_of_devices_counts_and_not_which_they_are() -> None:
    assert normalise.environment({"CUDA_VISIBLE_DEVICES": "0,1"}) == normalise.environment(
        {"CUDA_VISIBLE_DEVICES": "6,7"}
    )
    assert normalise.environment({"CUDA_VISIBLE_DEVICES": "0"}) != normalise.environment(
        {"CUDA_VISIBLE_DEVICES": "6,7"}
    )


@pytest.mark.parametrize(
    ("words", "size"),
    [
        (["vllm", "serve", "m"], 1),
        (["vllm", "serve", "m", "-tp", "4"], 4),
        (["vllm", "serve", "m", "--tensor_parallel_size=2", "--data-parallel-size", "3"], 6),
        (["vllm", "serve", "m", "-tp", "many"], 1),
    ],
)
def test_the_world_size_is_the_product_of_the_parallel_sizes(words: list[str], size: int) -> None:
    assert normalise.world_size(words) == size


def test_a_parallel_size_makes_one_key_however_it_is_spelt() -> None:
    def launched(*words: str) -> str:
        told = ["vllm", "serve", "/models/q", *words]
        return fingerprint(
            facts(argv=told, world=launchers_facts.world(told, {"LWS_WORKER_INDEX": "0"})), LIVE
        ).exact_key

    long = launched("--tensor-parallel-size", "2", "--nnodes", "2", "--node-rank=1")
    assert launched("-tp", "2", "-n2", "-r", "1") == launched("--tensor_parallel_size=2", "-n", "2", "-r1") == long
    assert launched("-tp", "2", "-n2", "-r", "0") != long


def test_facts_that_may_hold_a_secret_are_declared_as_such() -> None:
    assert {fact.name for fact in FACTS if fact.stored == "value, secrets as digests"} == {
        "compilers", "environment", "argv"
    }  # fmt: skip


def headless(rank: int, address: str, pod: str, worker: str) -> dict[str, Any]:
    """Return the facts of one node of a two-node engine, as a LeaderWorkerSet starts it."""
    words = ["vllm", "serve", "/models/q", "-tp", "16", "--nnodes", "2", "--node-rank", str(rank), "--headless"]
    return facts(
        argv=[*words, "--master-addr", f"{pod}.group", "--kv-cache-dtype", "fp8"],
        hostname=pod,
        environment={"VLLM_HOST_IP": address, "VLLM_LOOPBACK_IP": address, "VLLM_MY_ENDPOINT": f"{pod}:5557"},
        world={"node_rank": str(rank), "nnodes": "2", "LWS_WORKER_INDEX": worker, "LWS_GROUP_SIZE": "2",
               "VLLM_DP_MASTER_IP": address},
    )  # fmt: skip


def test_each_node_of_an_engine_has_its_own_exact_key_and_all_share_the_toolchains() -> None:
    head = fingerprint(headless(0, "10.0.0.1", "engine-0", "0"), LIVE)
    other = fingerprint(headless(1, "10.0.0.2", "engine-0-1", "1"), LIVE)
    assert head.exact_key != other.exact_key
    assert head.toolchain_key == other.toolchain_key


def test_the_same_rank_in_another_pod_with_other_addresses_has_the_same_key() -> None:
    one = fingerprint(headless(1, "10.0.0.2", "engine-0-1", "1"), LIVE)
    next_day = fingerprint(headless(1, "fd00::17", "engine-3-1", "1"), LIVE)
    assert compare(one.exact, next_day.exact) == []


def test_two_numbers_of_speculative_tokens_never_share_an_exact_key() -> None:
    seven, nine = (argv("-sc", f'{{"num_speculative_tokens": {count}}}') for count in (7, 9))
    assert fingerprint(seven, LIVE).exact_key != fingerprint(nine, LIVE).exact_key
    assert fingerprint(seven, LIVE).toolchain_key == fingerprint(nine, LIVE).toolchain_key


def test_a_short_option_stands_for_its_long_one() -> None:
    assert normalise.arguments(["vllm", "-sc", "x", "-dpr", "4"]) == {
        "command": "vllm", "--speculative-config": "x", "--data-parallel-start-rank": "4"
    }  # fmt: skip
    assert (
        normalise.arguments(["vllm", "-cc.cudagraph_mode=FULL"])["--compilation-config"] == '{"cudagraph_mode": "FULL"}'
    )


ALIKE_JSON = [
    [["--compilation-config", '{"mode": 3, "pass_config": {"a": true, "b": null}}'],
     ['--compilation_config={"pass_config":{"b":null,"a":true},"mode":3}'],
     ["-cc", ' {"pass_config" : { "a": true,"b": null },\n"mode":3 }'],
     ["-cc.mode=3", "-cc.pass_config.b", "null", "-cc.pass_config.a=true"],
     ["--compilation-config.pass_config", '{"b": null, "a": true}', "--compilation-config.mode", "3"]],
    [["-cc", '{"custom_ops": ["none", "+rms_norm"]}'],
     ["-cc.custom_ops+", "none", "-cc.custom_ops+=+rms_norm"],
     ["-cc.custom_ops+=none,+rms_norm"], ["-cc.custom_ops", '["none","+rms_norm"]']],
    [["--hf-overrides", '{"architectures":["A"],"n":"\\u0041"}'], ['--hf-overrides={"n": "A", "architectures": ["A"]}'],
     ["--hf-overrides.n=A", "--hf-overrides.architectures+", "A"]],
    [["-sc", '{"method":"ngram","num_speculative_tokens":3}'], ["-sc.num_speculative_tokens", "3", "-sc.method", "ngram"],
     ["--speculative-config.method=ngram", '--speculative-config.num_speculative_tokens=3']],
    [["-O3"], ["-O", "3"], ["-O=3"]],
    [["--kv-transfer-config", '{"b":1,"a":"tcp://10.0.0.1:5"}'],
     ["--kv-transfer-config", '{"a": "tcp://10.9.9.9:5", "b": 1}']],
]  # fmt: skip


@pytest.mark.parametrize("spellings", ALIKE_JSON)
def test_json_makes_one_key_however_it_is_spelt(spellings: list[list[str]]) -> None:
    told = [argv(*one) for one in spellings]
    assert len({fingerprint(one, LIVE).exact_key for one in told}) == 1
    launched = [facts(argv=launchers.without_secrets(one["argv"])[0]) for one in told]
    assert len({fingerprint(one, LIVE).exact_key for one in launched}) == 1


@pytest.mark.parametrize("values", [
    ['{"a": 1}', '{"a": 0}', '{"a": -0}', '{"a": 1.0}', '{"a": 1e0}', '{"a": "1"}', '{"a": true}', '{"a": null}',
     '{"a": [1]}', '{"b": 1}', "{}", '{"a": 1, "a": 2}', '{"a": 2, "a": 1}', '{"a": 2}', '{"a": NaN}', '{"a": "NaN"}',
     '{"a": 1', "[1, 2]", "[2, 1]"],
])  # fmt: skip
def test_no_two_values_of_json_share_a_key(values: list[str]) -> None:
    assert len({fingerprint(argv("--additional-config", one), LIVE).exact_key for one in values}) == len(values)


DIFFERENT_DOTTED = [
    # Two thousand behind a dotted option is a number to vLLM; inside of JSON it is a string.
    (["-cc.a=2k"], ["-cc", '{"a": "2k"}']),
    (["-cc.a", "1"], ["-cc.a", "1.0"]),
    (["-cc.a=1"], ['-cc.a="1"']),
    # Of a short and a long name only what comes last counts, and plain JSON goes before dotted options.
    (["-cc.a=1", "--compilation-config.b=2"], ["-cc.a=1", "-cc.b=2"]),
    (["-cc", '{"a": 1}', "-cc.b=2"], ["-cc.a=1", "-cc.b=2"]),
    (["-cc.a=1", "-cc.a=2"], ["-cc.a=2", "-cc.a=1"]),
    (["-cc.a=1", "-cc.a.b=2"], ["-cc.a.b=2"]),
    (["-cc.a+", "x", "-cc.a", '["y"]', "-cc.a+", "z"], ["-cc.a+", "x", "-cc.a+", "z", "-cc.a", '["y"]']),
    (["-cc.a+", "x", "-cc.a", "y"], ["-cc.a", "y", "-cc.a+", "x"]),
    (["--hf-overrides.a", "--enforce-eager"], ["--enforce-eager"]),
]


@pytest.mark.parametrize(("one", "other"), DIFFERENT_DOTTED)
def test_dotted_options_that_mean_something_else_make_another_key(one: list[str], other: list[str]) -> None:
    assert fingerprint(argv(*one), LIVE).exact_key != fingerprint(argv(*other), LIVE).exact_key


def test_a_dotted_option_takes_one_value_and_the_model_stays_the_model() -> None:
    found = normalise.arguments(
        ["vllm", "serve", "-cc.mode", "3", "/models/q", "--default-chat-template-kwargs.think", "no"]
    )
    assert found == {"command": "vllm serve /models/q", "--compilation-config": '{"mode": 3}'}


def test_a_secret_behind_a_dotted_option_keeps_the_name_that_gives_it_away() -> None:
    found = fingerprint(argv("--foo.access.key.id", "hunter2aa", "--foo.b", "1"), LIVE)
    assert "hunter2" not in str(found)
    assert found.exact["argv.--foo.access.key.id"].startswith("sha256:")


@pytest.mark.parametrize(
    ("value", "left"),
    [
        ("tcp://10.1.2.3:5557", "tcp://<address>"),
        ('{"host": "10.1.2.3", "port": 1}', '{"host": "<address>", "port": 1}'),
        ("[fd00::1:2]:8000", "<address>"),
        ("fe80::1:2", "<address>"),
        ("tcp://[fd00::1]:80/x", "tcp://<address>/x"),
        ("10.0.0.1:80,10.0.0.2:80", "<address>,<address>"),
        ('{"a": "a::b", "n": "/models/1.0.0.3"}', '{"a": "a::b", "n": "/models/1.0.0.3"}'),
        ("/data/engine-0/x", "/data/engine-0/x"),
        ("tcp://engine-0:5557", "tcp://<own name>:5557"),
        ("engine-0.engine.default.svc", "<own name>.engine.default.svc"),
        ("/models/engine-0-weights", "/models/engine-0-weights"),
        ("512.1.1.1", "512.1.1.1"),
        ("1:2:3", "1:2:3"),
        ("2.11.0", "2.11.0"),
    ],
)
def test_what_differs_from_pod_to_pod_is_taken_out_of_values(value: str, left: str) -> None:
    assert normalise.without_addresses(value, ["engine-0"]) == left


def named(pod: str, uid: str, **changes: Any) -> dict[str, Any]:
    """Return the facts of a pod that is told its name and writes it into everything, on its node's network."""
    return facts(
        argv=[
            "sh",
            "-c",
            f"mkdir -p /logs/{pod}; exec vllm serve /models/q --instance {pod}-0 --x-config /c/{pod}.json",
        ],
        environment={
            "VLLM_TORCH_PROFILER_DIR": f"/prof/{pod}",
            "VLLM_ENGINE": f"kv-{pod}",
            "VLLM_RUN": f"/runs/{uid}/x",
        },
        hostname="gpu-node-1",
        **{"names": ["gpu-node-1", pod, uid], **changes},
    )


ONE = ("engine-7d9f8b6c5-x2x9z", "0b8f5d6e-7a5c-4f43-9d3e-1c2b3a4d5e6f")
NEXT = ("engine-7d9f8b6c5-b4kqz", "7e57ab1e-1111-4222-8333-444455556666")


def test_pods_of_a_deployment_on_their_nodes_network_share_a_key_whatever_is_named_after_them() -> None:
    one, other = (fingerprint(named(*pod), LIVE) for pod in (ONE, NEXT))
    assert compare(one.exact, other.exact) == []
    assert one.exact_key == other.exact_key
    # Of nobody else's name is anything taken out.
    assert fingerprint(named(*ONE, names=[]), LIVE).exact_key != fingerprint(named(*NEXT, names=[]), LIVE).exact_key


def test_the_random_name_of_a_pod_is_left_in_the_place_of_its_model() -> None:
    models = {
        fingerprint(facts(argv=["vllm", "serve", *words, f"/m/{pod}"], hostname=pod), LIVE).exact_key
        for pod in (ONE[0], NEXT[0])
        for words in ([], ["--tokenizer"])
    }
    assert len(models) == 4


def test_a_version_of_four_numbers_is_kept() -> None:
    assert normalise.environment({"CUDA_VERSION": "12.8.1.12"}) == {"CUDA_VERSION": "12.8.1.12"}


def test_a_plain_host_name_is_not_taken_for_a_word_of_a_path() -> None:
    assert normalise.without_addresses("/models/qwen", "qwen") == "/models/qwen"


@pytest.mark.parametrize(
    ("changes", "ranks"),
    [
        ({"argv": ["vllm", "serve", "m"], "world": {}}, Ranks(1)),
        ({"argv": ["vllm", "serve", "m", "-tp", "4", "-pcp", "2"], "world": {}}, Ranks(8)),
        ({"argv": ["vllm", "serve", "m", "-tp", "2", "-dp", "4", "-dpl", "4"], "world": {}}, Ranks(8)),
        ({"argv": ["vllm", "serve", "m", "-tp", "2", "-dp", "4", "-dpl", "2"], "world": {}}, Ranks(8, False)),
        ({"argv": ["vllm", "serve", "m", "-tp", "16", "--nnodes", "2"], "world": {}}, Ranks(16, False)),
        ({"argv": ["vllm", "serve", "m", "-tp", "2", "--headless"], "world": {}}, Ranks(2, False)),
        ({"argv": ["vllm", "serve", "m", "-dp", "2"], "world": {"VLLM_DP_RANK": "1"}}, Ranks(2, False)),
        ({"argv": ["vllm", "serve", "m", "-tp", "4"], "world": {"LWS_GROUP_SIZE": "2"}}, Ranks(4, False)),
        ({"argv": ["vllm", "serve", "m", "-tp", "8", "--distributed-executor-backend=ray"]}, Ranks(8, False)),
        ({"argv": ["python", "x.py"], "world": {"WORLD_SIZE": "4"}}, Ranks(4)),
        ({"argv": None, "world": 3}, Ranks(1)),
        ({"argv": ["sh", "-c", "vllm serve m --tensor-parallel-size 8"]}, Ranks(8)),
        ({"argv": ["/bin/bash", "-lc", "cd /x && exec vllm serve -tp 8 m 2>&1 | tee log"]}, Ranks(8)),
        ({"argv": ["sh", "-c", "exec bash -c 'vllm serve m -tp 4 --nnodes 2'"]}, Ranks(4, False)),
        ({"argv": ["numactl", "-N0", "sh", "-ec", "ulimit -n 65535; vllm serve m --port $PORT"]}, Ranks(1)),
        ({"argv": ["vllm", "serve", "m", "--tensor-parallel", "8"]}, Ranks(8)),
        ({"argv": ["vllm", "serve", "m", "--tensor_par=8", "--head"]}, Ranks(8, False)),
        ({"argv": ["vllm", "serve", "-tp", "8", "/models/q"]}, Ranks(8)),
        ({"argv": ["vllm", "serve", "m", "--config", "x.yaml"]}, Ranks(2, False)),
        ({"argv": ["vllm", "serve", "m", "-tp", "4", "--config=x.yaml"]}, Ranks(4, False)),
        ({"argv": ["sh", "-c", "vllm serve m --config x.yaml"]}, Ranks(2, False)),
        ({"argv": ["sh", "-c", "echo it's; vllm serve m"]}, Ranks(2, False)),
        ({"argv": ["sh", "-c", 'exec vllm serve "$@"', "--", "m", "-tp", "8"]}, Ranks(2, False)),
        ({"argv": ["sh", "-c", "vllm serve $MODEL $ARGS"]}, Ranks(2, False)),
        ({"argv": ["sh", "-c", "vllm serve $MODEL --max-model-len=$LEN"]}, Ranks(1)),
        ({"argv": ["sh", "-c", "vllm serve m --port $(cat port) -tp 8"]}, Ranks(2, False)),
        ({"argv": ["sh", "-c", "vllm serve m -tp $TP"]}, Ranks(2, False)),
        ({"argv": ["sh", "-c", "if [ -f x ]; then vllm serve m -tp 8; else vllm serve m; fi"]}, Ranks(8, False)),
        ({"argv": ["/start.sh"]}, Ranks(2, False)),
        ({"argv": ["vllm", "serve", "m", "-tp", "16", "-n2"]}, Ranks(16, False)),
        ({"argv": ["vllm", "serve", "m", "-r1"]}, Ranks(1, False)),
        ({"argv": ["/opt/nvidia/entrypoint.sh", "vllm", "serve", "m"]}, Ranks(1)),
    ],
)
def test_all_ranks_are_here_only_when_nothing_says_otherwise(changes: dict[str, Any], ranks: Ranks) -> None:
    assert normalise.ranks(facts(**changes)) == ranks


@pytest.mark.parametrize(
    ("packages", "nvcc", "majors"),
    [
        ({"torch": {"version": "2.11.0+cu129"}}, "13.0.88", {"12", "13"}),
        ({"torch": {"version": "2.14.0"}, "nvidia-cuda-runtime": {"version": "13.0.96"}}, None, {"13"}),
        ({"torch": {"version": "2.6.0"}, "nvidia-cuda-runtime-cu12": {"version": "12.4.127"}}, "12.4", {"12"}),
        ({"torch": {"version": "2.13.0+cpu"}}, None, set()),
        (None, None, set()),
    ],
)
def test_the_cuda_versions_of_an_image_are_torchs_and_nvccs(packages: Any, nvcc: Any, majors: set[str]) -> None:
    assert cuda_majors(facts(packages=packages, toolchain={"nvcc": nvcc})) == majors


def shell(script: str) -> dict[str, Any]:
    return facts(argv=["sh", "-c", script])


def test_what_is_harmless_is_harmless_inside_a_shells_script_too() -> None:
    one = fingerprint(shell("cd /x; exec vllm serve /models/q --port 8000 --host 10.0.0.1"), LIVE)
    other = fingerprint(shell("cd /x; exec vllm serve /models/q --host 10.9.9.9 --port=9000 2>&1"), LIVE)
    assert compare(one.exact, other.exact) == compare({"argv.command": "vllm serve /models/q"}, {
        "argv.command": "vllm serve /models/q 2>&1"
    })  # fmt: skip
    assert fingerprint(shell("vllm serve m --port 1"), LIVE).exact_key == fingerprint(
        facts(argv=["vllm", "serve", "m"]), LIVE
    ).exact_key  # fmt: skip


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("export VLLM_X=1; vllm serve m", "export VLLM_X=2; vllm serve m"),
        ("VLLM_X=/a/b vllm serve m", "VLLM_X=/c/b vllm serve m"),
        ("vllm serve m -tp 2", "vllm serve m -tp 4"),
    ],
)
def test_what_a_script_changes_makes_another_key(one: str, other: str) -> None:
    assert fingerprint(shell(one), LIVE).exact_key != fingerprint(shell(other), LIVE).exact_key


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (["/models/llama/1.0.0.3"], ["/models/llama/1.0.0.4"]),
        (["1.0.0.3"], ["1.0.0.4"]),
        (["--model", "1.0.0.3"], ["--model", "1.0.0.4"]),
        (["--tokenizer", "1.0.0.3"], ["--tokenizer", "1.0.0.4"]),
        (["--revision", "1.2.3.4"], ["--revision", "1.2.3.5"]),
        (["--code-revision", "1.2.3.4"], ["--code-revision", "1.2.3.5"]),
        (["--compilation-config", '{"x": "a::b"}'], ["--compilation-config", '{"x": "c::d"}']),
        (["-cc", '{"x": "1.2.3.4"}'], ["-cc", '{"x": "1.2.3.5"}']),
        (["--lora-modules", "a=/l/1.0.0.3"], ["--lora-modules", "a=/l/1.0.0.4"]),
        (["--something-new", "a::b"], ["--something-new", "c::d"]),
    ],
)
def test_a_version_of_four_numbers_or_a_double_colon_is_no_address(one: list[str], other: list[str]) -> None:
    assert fingerprint(argv(*one), LIVE).exact_key != fingerprint(argv(*other), LIVE).exact_key


def test_a_model_named_like_its_pod_is_not_taken_for_another_pods() -> None:
    keys = {
        fingerprint(facts(argv=["vllm", "serve", f"/models/{name}"], hostname=name), LIVE).exact_key
        for name in ("engine-0", "engine-1")
    }
    assert len(keys) == 2


def test_a_part_of_a_gpu_and_the_whole_share_kernels_but_no_tactics() -> None:
    whole = {"index": 0, "name": "NVIDIA H100 80GB HBM3", "uuid": "GPU-aaaa1111", "bus": "0000:18", "sm": "sm90"}
    keys = [
        fingerprint(facts(gpus=[{**whole, **part}]), LIVE) for part in ({}, {"mig": ["1g.10gb"]}, {"mig": ["3g.40gb"]})
    ]
    assert len({key.exact_key for key in keys}) == 3
    assert len({key.toolchain_key for key in keys}) == 1
    assert keys[1].exact["gpus.0"] == "NVIDIA H100 80GB HBM3 MIG 1g.10gb"


UNLIKE = [
    {"index": 0, "name": "NVIDIA RTX 3090", "uuid": "GPU-aaaa1111", "bus": "0000:01"},
    {"index": 1, "name": "NVIDIA RTX 5090", "uuid": "GPU-bbbb2222", "bus": "0000:02"},
]
ALIKE = [{**one, "name": "NVIDIA H200"} for one in UNLIKE]


def seen(gpus: list[dict[str, Any]], visible: str, **more: str) -> Any:
    return fingerprint(facts(gpus=gpus, environment={"CUDA_VISIBLE_DEVICES": visible, **more}), LIVE)


@pytest.mark.parametrize(("one", "other"), [("0", "1"), ("GPU-aaaa1111", "GPU-bbbb2222"), ("0,1", "1,0"), ("0", "7")])
@pytest.mark.parametrize("order", [{}, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}])
def test_of_unlike_gpus_the_exact_key_holds_those_that_the_engine_sees(one: str, other: str, order: Any) -> None:
    assert seen(UNLIKE, one, **order).exact_key != seen(UNLIKE, other, **order).exact_key


@pytest.mark.parametrize("order", [{}, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}])
def test_of_unlike_gpus_the_toolchain_key_holds_those_that_the_engine_sees(order: Any) -> None:
    assert seen(UNLIKE, "0", **order).toolchain_key != seen(UNLIKE, "1", **order).toolchain_key
    assert seen(ALIKE, "0", **order).exact_key == seen(ALIKE, "1", **order).exact_key


def test_a_list_that_names_its_gpus_for_certain_is_resolved_and_another_is_kept_as_it_is() -> None:
    by_name = seen(UNLIKE, "GPU-bbbb2222")
    assert (by_name.toolchain["gpu_kinds"], by_name.exact["gpus.0"]) == ("NVIDIA RTX 5090", "NVIDIA RTX 5090")
    assert "gpu_list" not in by_name.toolchain
    by_bus = seen(UNLIKE, "1", CUDA_DEVICE_ORDER="PCI_BUS_ID")
    assert by_bus.toolchain_key == by_name.toolchain_key
    # The fastest GPU is the first one where nothing else is said.
    by_speed = seen(UNLIKE, "1")
    assert by_speed.toolchain["gpu_list"] == by_speed.exact["gpu_list"] == "1"


SECRETS = (
    "VLLM_API_KEY --api-key --api_key --api-k HF_TOKEN --hf-token --hf-t VLLM_AUTH s3_secret_access_key apiKey authToken token "
    "VLLM_AUTHORIZATION --additional-config.token KEY_1 AWS_ACCESS_KEY_ID password PASSPHRASE credentials "
    "--kv-transfer-config --kv_transfer_config --kv-transfer --kv-transfer-config.port --ec-transfer-config "
    "--kv-events-config VLLM_KV_TRANSFER_CONFIG --model-loader-extra-config.s3_secret"
).split()
NO_SECRETS = (
    "--max-num-batched-tokens --tokenizer --tokenizer-mode HF_TOKEN_FILE S3_SECRET_PATH --ssl-keyfile max_tokens "
    "VLLM_TOKENS VLLM_MONKEY --kv-cache-dtype --enable-auth --model token_count eos_token_id --api-server-count "
    "--model-loader-extra-config VLLM_KEEP_ALIVE_ON_ENGINE_DEATH --return-tokens-as-token-ids author"
).split()


@pytest.mark.parametrize("name", SECRETS)
def test_launcher_and_last_gate_agree_on_what_is_a_secret(name: str) -> None:
    assert launchers.is_secret(name)
    assert last_gate.is_secret(name)


@pytest.mark.parametrize("name", NO_SECRETS)
def test_launcher_and_last_gate_agree_on_what_is_no_secret(name: str) -> None:
    assert not launchers.is_secret(name)
    assert not last_gate.is_secret(name)


def test_a_number_of_tokens_is_shown_so_that_explain_can_say_which_differs() -> None:
    (one,) = compare(
        fingerprint(argv("--max-num-batched-tokens", "4096", "--tokenizer", "t"), LIVE).exact,
        fingerprint(argv("--max-num-batched-tokens", "8192", "--tokenizer", "t"), LIVE).exact,
    )
    assert (one.ours, one.theirs) == ("4096", "8192")


HIDING = [
    lambda secret: argv("--model-loader-extra-config", f'{{"s3_secret_access_key":"{secret}"}}'),
    lambda secret: argv("--additional-config", f'{{"a": [{{"token": "{secret}"}}]}}'),
    lambda secret: argv("--additional-config", f'{{"a": 1}} {{"token": "{secret}"'),
    lambda secret: argv("--kv_transfer_config", f'{{"a": "{secret}"}}'),
    lambda secret: shell(f"""vllm serve m --kv-transfer-config '{{"a": "x {secret}"}}'"""),
    lambda secret: shell(f"export HF_TOKEN={secret}; login --hf-token {secret}; vllm serve m"),
    lambda secret: shell(f"HF_TOKEN={secret} vllm serve m"),
    lambda secret: env(VLLM_S3_URL=f"https://u:{secret}@h"),
    lambda secret: env(VLLM_AUTH=secret),
    lambda secret: env(VLLM_JSON=f'{{"auth": {{"password": "{secret}"}}}}'),
]


@pytest.mark.parametrize("hiding", HIDING)
def test_no_secret_reaches_the_store_and_another_secret_makes_another_key(hiding: Any) -> None:
    one, same, other = (fingerprint(hiding(secret), LIVE) for secret in ("hunter2aa", "hunter2aa", "hunter3bb"))
    assert "hunter" not in f"{one}{other}{[str(each) for each in compare(one.exact, other.exact)]}"
    assert one.exact_key == same.exact_key != other.exact_key


@pytest.mark.parametrize("hiding", HIDING)
def test_the_launchers_facts_hold_no_secret_and_equal_secrets_make_equal_keys(hiding: Any) -> None:
    def told(secret: str) -> dict[str, Any]:
        given = hiding(secret)
        environment = {name: launchers.shown_value(name, value) for name, value in given["environment"].items()}
        return {**given, "argv": launchers.without_secrets(given["argv"])[0], "environment": environment}

    assert "hunter" not in str(told("hunter2aa"))
    keys = [fingerprint(told(secret), LIVE).exact_key for secret in ("hunter2aa", "hunter2aa", "hunter3bb")]
    assert keys[0] == keys[1] != keys[2]
