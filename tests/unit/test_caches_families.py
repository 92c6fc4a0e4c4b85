"""Claims about the table of cache families."""

from __future__ import annotations

import pytest

from sidecar.caches import families


def test_every_engine_variable_points_below_the_live_cache_or_is_a_number() -> None:
    found = families.environment("/var/cache/engine/")
    assert found["VLLM_CACHE_ROOT"] == "/var/cache/engine/vllm"
    assert found["FLASHINFER_WORKSPACE_BASE"] == "/var/cache/engine/flashinfer"
    assert {name for name, value in found.items() if not value.startswith("/var/cache/engine/")} == {
        "CUDA_CACHE_MAXSIZE"
    }
    assert not {"HOME", "TMPDIR", "XDG_CACHE_HOME"} & found.keys()


def test_no_stored_family_lies_inside_another() -> None:
    places = [family.directory + "/" for family in families.stored_families()]
    assert len(set(places)) == len(places)
    assert not [(a, b) for a in places for b in places if a != b and a.startswith(b)]


def test_the_directories_are_listed_parents_first_and_cover_every_stored_family() -> None:
    found = families.directories("/live")
    assert found[0] == "/live"
    assert {f"/live/{family.directory}" for family in families.stored_families()} <= set(found)
    assert "/live/humming/tmp" in found


@pytest.mark.parametrize(
    ("family", "path", "expected"),
    [
        ("inductor", "ab/cabc.so", True),
        ("inductor", "ab/cabc.cpp", False),
        ("triton", "ABC/k.cubin", True),
        ("triton", "ABC/__grp__k.json", False),
        ("triton", "ABC/cuda_utils.so", False),
        ("deep_gemm", "cache/kernel.fp8.0a/kernel.cubin", True),
        ("deep_gemm", "cache/kernel.fp8.0a/kernel.cu", False),
        ("flashinfer", ".cache/flashinfer/0.7.2/90a/cached_ops/m/m.so", True),
        ("flashinfer", ".cache/flashinfer/0.7.2/90a/cached_ops/m/m.cuda.o", False),
        ("flashinfer", ".cache/flashinfer/0.7.2/90a/cached_ops/x_90a_cute_dsl/x.o", True),
        ("vllm_compile", "torch_aot_compile/ab/rank_0_0/model", True),
        ("nv", "1/2/3f", True),
        ("nv", "index", False),
    ],
)
def test_one_kernel_is_one_file(family: str, path: str, expected: bool) -> None:
    assert families.is_kernel(family, path) is expected


@pytest.mark.parametrize(
    ("family", "path"),
    [
        ("inductor", "locks/abc.lock"),
        ("inductor", "ab/.17.1234.tmp"),
        ("triton", "ABC/tmp.pid_1_0a/k.cubin"),
        ("triton", "tmp.0a1b/k.cubin"),
        ("vllm_compile", "torch_aot_compile/ab/rank_0_0/model.17.tmp"),
        ("quack", "ab/c.o.tmp.17"),
        ("flashinfer", ".cache/flashinfer/0.7.2/90a/cached_ops/tmp/m.lock"),
        ("flashinfer", ".cache/flashinfer/0.7.2/90a/flashinfer_jit.log"),
        ("deep_gemm", "tmp/0a1b/kernel.cubin"),
        ("triton", ".nfs000123"),
        ("flashinfer_tuning", "tmp1a_b2c3d"),
        ("flashinfer", ".cache/flashinfer/0.7.2/90a/cached_ops/kda/tmp1a_b2c3d/kernel.so"),
        ("flashinfer_tuning", ".moe_ep_knob_cache.1a_b2c3d"),
    ],
)
def test_locks_and_unfinished_files_never_travel(family: str, path: str) -> None:
    assert families.is_left_out(families.BY_NAME[family], path)


def test_every_row_says_since_when_it_is_known_and_why_it_is_there() -> None:
    assert all(family.since and family.note.endswith(".") for family in families.FAMILIES)
    assert all(one.why.endswith(".") for one in families.NO_FAMILY)
    names = [one.name for one in (*families.FAMILIES, *families.NO_FAMILY)]
    assert len(set(names)) == len(names)


def test_what_no_variable_moves_is_linked_to_a_directory_that_is_made() -> None:
    links = families.links("/live/")
    assert links["~/.quack/cache"] == "/live/quack_autotune"
    assert set(links.values()) <= set(families.directories("/live"))
    assert all(place.startswith(("~/", "$TMPDIR/")) for place in links)


def test_a_variable_that_names_a_file_gets_its_directory_made_and_not_a_directory_of_its_name() -> None:
    found = families.directories("/live")
    assert "/live/flashinfer_tuning" in found
    assert not [path for path in found if path.endswith(".json")]


def test_the_cubins_of_the_flashinfer_wheel_are_not_hidden_and_downloaded_ones_travel() -> None:
    assert "FLASHINFER_CUBIN_DIR" not in families.environment("/live")
    assert not families.is_left_out(families.BY_NAME["flashinfer"], ".cache/flashinfer/cubins/ab/fmha.cubin")


def test_what_was_timed_on_one_gpu_does_not_travel_with_the_compilers_that_only_share_its_sm_version() -> None:
    tuned = ".cache/flashinfer/0.7.2/90a/autotune/sparse_mla_sm120_cpb.json"
    assert families.is_left_out(families.BY_NAME["flashinfer"], tuned)
    assert {families.BY_NAME[name].scope for name in ("flashinfer_tuning", "quack_autotune")} == {"exact"}


RANKS = [f"0.7.2/90a/ab/autotune_configs_dp{dp}_rank{rank}.json" for dp in (0, 1) for rank in (0, 1)]


@pytest.mark.parametrize(
    ("paths", "ranks", "left_out"),
    [
        (["x/autotune_configs.json"], families.Ranks(1), []),
        (["x/autotune_configs.json"], families.Ranks(2), ["x/autotune_configs.json"]),
        (["x/autotune_configs.json"], families.Ranks(1, all_here=False), ["x/autotune_configs.json"]),
        (RANKS, families.Ranks(4), []),
        (RANKS[:3], families.Ranks(4), RANKS[:3]),
        (RANKS, families.Ranks(2), RANKS),
        (RANKS, families.Ranks(4, all_here=False), RANKS),
        ([*RANKS[:2], "cd/autotune_configs_dp1_rank0.json"], families.Ranks(2), ["cd/autotune_configs_dp1_rank0.json"]),
        (["v2/ab/entries/1.json"], families.Ranks(4), []),
    ],
    ids=["one rank", "a shared file", "ranks elsewhere", "all ranks", "one is missing", "of another layout",
         "other ranks in other pods", "two sets of which one is whole", "single entries"],
)  # fmt: skip
def test_tactics_of_several_ranks_travel_for_all_ranks_or_none(
    paths: list[str], ranks: families.Ranks, left_out: list[str]
) -> None:
    family = families.BY_NAME["flashinfer_autotune"]
    assert sorted(families.left_out_by_ranks(family, paths, ranks)) == sorted(left_out)


def test_whoever_does_not_know_all_files_lets_no_ranks_tactics_travel() -> None:
    assert families.is_left_out(families.BY_NAME["flashinfer_autotune"], RANKS[0], world_size=4)
    assert not families.is_left_out(families.BY_NAME["flashinfer_autotune"], RANKS[0])


def test_autotune_files_of_one_rank_travel_only_when_there_is_one_rank() -> None:
    family = families.BY_NAME["flashinfer_autotune"]
    path = "0.6.13/90/abc/autotune_configs.json"
    assert not families.is_left_out(family, path, world_size=1)
    assert families.is_left_out(family, path, world_size=2)
    assert not families.is_left_out(family, "v2/abc/entries/1.json", world_size=2)


def test_the_files_of_a_flashinfer_module_are_one_entry_across_both_trees() -> None:
    family = families.BY_NAME["flashinfer"]
    built = families.unit_of(family, ".cache/flashinfer/1/90a/cached_ops/m/m.so")
    source = families.unit_of(family, ".cache/flashinfer/1/90a/generated/m/m.cu")
    assert built == source is not None


def test_files_of_the_vllm_root_that_are_wrong_elsewhere_belong_to_no_stored_family() -> None:
    stored = [family.directory + "/" for family in families.stored_families()]
    for path in ("vllm/gpu_p2p_access_cache_for_0.json", "vllm/assets/a", "vllm/startup_plan/p.json"):
        assert not any(path.startswith(place) for place in stored)
