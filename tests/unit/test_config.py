"""Settings: precedence, and that a wrong one costs its own value and nothing else."""

from __future__ import annotations

from pathlib import Path

import pydantic
import pytest

from sidecar.config import Settings, load
from sidecar.errors import SettingsError


def test_a_flag_counts_before_the_environment_before_the_file_before_the_default(tmp_path: Path) -> None:
    file = tmp_path / "warmup.yaml"
    file.write_text("store: /from/file\nmodel: from-file\nstall_s: 7\n")
    environment = {"WARMUP_CONFIG": str(file), "WARMUP_STORE": "/from/environment", "WARMUP_MODEL": "from-environment"}
    loaded = load(environment, {"model": "from-flag"})
    assert (loaded.settings.model, loaded.settings.store, loaded.settings.stall_s) == (
        "from-flag",
        "/from/environment",
        7.0,
    )
    assert loaded.settings.publish_quiet_s == Settings.model_fields["publish_quiet_s"].default
    assert loaded.sources == {"model": "flag", "store": "environment", "stall_s": str(file)}
    assert loaded.problems == ()


def test_an_unknown_setting_is_told_with_the_name_that_was_meant() -> None:
    loaded = load({"WARMUP_STROE": "/mnt/store"})
    assert "WARMUP_STROE is not a setting. Did you mean WARMUP_STORE?" in str(loaded.problems[0])
    with pytest.raises(SettingsError, match="Did you mean"):
        loaded.or_raise()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("WARMUP_RESTORE_TIMEOUT_S", "soon"),
        ("WARMUP_RESTORE_TIMEOUT_S", "-1"),
        ("WARMUP_STALL_S", "nan"),
        ("WARMUP_LISTEN", "9797"),
        ("WARMUP_ENGINE_URL", "localhost:8000"),
        ("WARMUP_ENGINE", "llama"),
        ("WARMUP_ON_UNWARMED", "maybe"),
        ("WARMUP_ON_GOLDEN_FAILED", "pray"),
        ("WARMUP_ON_GOLDEN_FAILED", ","),
        ("WARMUP_LIVE_CACHE", "relative/path"),
        ("WARMUP_STORE", "ftp://host/store"),
        ("WARMUP_STORE", "relative"),
        ("WARMUP_SM", "hopper"),
        ("WARMUP_LAUNCHER", "perhaps"),
    ],
)
def test_a_value_that_cannot_be_used_is_named_and_the_default_counts(name: str, value: str) -> None:
    loaded = load({name: value, "WARMUP_MODEL": "kept"})
    assert len(loaded.problems) == 1
    assert name in str(loaded.problems[0])
    assert "Default used instead" in str(loaded.problems[0])
    assert loaded.settings == load({"WARMUP_MODEL": "kept"}).settings


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("90", "sm90"),
        ("9.0", "sm90"),
        ("sm_90a", "sm90"),
        ("SM90", "sm90"),
        ("10.3", "sm103"),
        ("120", "sm120"),
        (" sm_100f ", "sm100"),
        ("cpu", "cpu"),
        ("CPU", "cpu"),
    ],
)
def test_an_sm_version_is_taken_as_tools_print_it(given: str, meant: str) -> None:
    loaded = load({"WARMUP_SM": given})
    assert (loaded.settings.sm, loaded.problems) == (meant, ())


@pytest.mark.parametrize("given", ["8", "10", "12", "0.9", "90.0", "1000", "9.0.1", "9.0, 9.0", "٩٠"])
def test_a_number_that_is_no_sm_version_is_refused_and_not_guessed_at(given: str) -> None:
    loaded = load({"WARMUP_SM": given})
    assert loaded.settings.sm == ""
    assert "sm90" in str(loaded.problems[0])


@pytest.mark.parametrize(
    ("given", "meant"), [("9.0", "sm90"), ("12.0", "sm120"), ("90", "sm90"), ("90.0", ""), ("[9.0]", ""), ("true", "")]
)
def test_an_sm_version_that_yaml_made_a_number_of_is_read_or_refused(tmp_path: Path, given: str, meant: str) -> None:
    file = tmp_path / "warmup.yaml"
    file.write_text(f"sm: {given}\n")
    loaded = load({"WARMUP_CONFIG": str(file)})
    assert (loaded.settings.sm, bool(loaded.problems)) == (meant, not meant)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("WARMUP_SM", "hopper"),
        ("WARMUP_LISTEN", "9797"),
        ("WARMUP_ENGINE_URL", "h:1"),
        ("WARMUP_IMAGE", "vllm/vllm-openai:latest"),
        ("WARMUP_POD_NAME", "My_Pod"),
        ("WARMUP_GPUS", "0"),
    ],
)
def test_a_value_of_another_form_is_told_in_words_what_is_asked_for(name: str, value: str) -> None:
    said = str(load({name: value}).problems[0])
    wanted = Settings.model_fields[name.removeprefix("WARMUP_").lower()].description
    assert wanted is not None
    assert wanted.rstrip(".") in said
    assert "pattern" not in said


@pytest.mark.parametrize(
    ("name", "value", "asked"),
    [
        ("WARMUP_POD_NAME", "My_Pod", "small letters, digits, `-` and `.`"),
        ("WARMUP_POD_NAMESPACE", "My_Space", "small letters, digits and `-`"),
        ("WARMUP_IMAGE", "vllm/vllm-openai:latest", "@sha256:"),
    ],
)
def test_the_form_of_a_name_is_told_where_one_has_another(name: str, value: str, asked: str) -> None:
    assert asked in str(load({name: value}).problems[0])


def test_a_wrong_value_of_a_flag_leaves_the_environments_one_in_place() -> None:
    loaded = load({"WARMUP_STALL_S": "30"}, {"stall_s": "never"})
    assert loaded.settings.stall_s == 30
    assert len(loaded.problems) == 1


@pytest.mark.parametrize("content", ["[1, 2]", "store: [", "store: \xff".encode("latin-1").decode("latin-1"), "3: x"])
def test_a_file_that_cannot_be_used_is_one_problem(tmp_path: Path, content: str) -> None:
    file = tmp_path / "warmup.yaml"
    file.write_bytes(content.encode("latin-1"))
    loaded = load({"WARMUP_CONFIG": str(file)})
    assert len(loaded.problems) == 1
    assert str(file) in str(loaded.problems[0])
    assert loaded.settings == Settings()


def test_variables_of_a_kubernetes_service_called_warmup_are_no_settings() -> None:
    environment = {
        "WARMUP_SIDECAR_SERVICE_HOST": "10.0.0.7",
        "WARMUP_SIDECAR_SERVICE_PORT": "9797",
        "WARMUP_SIDECAR_SERVICE_PORT_HTTP": "9797",
        "WARMUP_SIDECAR_PORT": "tcp://10.0.0.7:9797",
        "WARMUP_SIDECAR_PORT_9797_TCP": "tcp://10.0.0.7:9797",
        "WARMUP_SIDECAR_PORT_9797_TCP_ADDR": "10.0.0.7",
    }
    assert load(environment).problems == ()


def test_trusted_keys_that_cannot_be_used_as_a_setting_switch_the_store_off() -> None:
    loaded = load({"WARMUP_STORE": "/mnt/store", "WARMUP_TRUSTED_KEYS_FILE": "keys"})
    assert loaded.settings.store == ""
    assert "absolute path" in str(loaded.problems[0])


def test_trusted_keys_in_the_file_that_cannot_be_used_switch_the_store_off_too(tmp_path: Path) -> None:
    file = tmp_path / "warmup.yaml"
    file.write_text("store: /mnt/store\ntrusted_keys_file: [/keys]\n")
    assert load({"WARMUP_CONFIG": str(file)}).settings.store == ""


def test_trusted_keys_leave_the_store_on() -> None:
    loaded = load({"WARMUP_STORE": "/mnt/store", "WARMUP_TRUSTED_KEYS_FILE": "/keys"})
    assert (loaded.settings.store, str(loaded.settings.trusted_keys_file), loaded.problems) == (
        "/mnt/store",
        "/keys",
        (),
    )


def test_a_store_mode_that_cannot_be_read_is_the_one_that_does_no_harm() -> None:
    loaded = load({"WARMUP_STORE_MODE": "readonly"})
    assert loaded.settings.store_mode == "read-only"
    assert "'read-only' is used" in str(loaded.problems[0])


def test_words_may_be_written_in_any_case() -> None:
    loaded = load({"WARMUP_STORE_MODE": "READ-ONLY", "WARMUP_ON_UNWARMED": "Hold"})
    assert (loaded.settings.store_mode, loaded.settings.on_unwarmed, loaded.problems) == ("read-only", "hold", ())


def test_a_password_in_the_engines_address_is_refused_and_not_repeated() -> None:
    loaded = load({"WARMUP_ENGINE_URL": "http://user:s3cret@127.0.0.1:8000"})
    assert "must not hold a user or password" in str(loaded.problems[0])
    assert "s3cret" not in str(loaded.problems[0])
    assert loaded.settings.engine_url == "http://127.0.0.1:8000"


@pytest.mark.parametrize(
    "content", ["listen: 2026-99-99", "store: !!bool maybe", "store: " + "[" * 20000, 'live_cache: "/a\\0b"']
)
def test_a_file_that_breaks_the_parser_is_a_problem_and_not_a_crash(tmp_path: Path, content: str) -> None:
    file = tmp_path / "warmup.yaml"
    file.write_text(content)
    loaded = load({"WARMUP_CONFIG": str(file)})
    assert len(loaded.problems) == 1
    assert loaded.settings == Settings()


def test_settings_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Settings().store = "/elsewhere"  # type: ignore[misc]


def test_extra_roots_are_absolute_directories_between_colons() -> None:
    loaded = load({"WARMUP_EXTRA_ROOTS": "/opt/dsl/:/scratch/cache"})
    assert loaded.settings.watched_roots == ("/opt/dsl", "/scratch/cache")
    for bad in ("relative", "/", "/opt:scratch"):
        refused = load({"WARMUP_EXTRA_ROOTS": bad})
        assert refused.settings.watched_roots == ()
        assert "must be an absolute path" in str(refused.problems[0])


def test_families_to_exclude_are_named_between_commas() -> None:
    assert load({"WARMUP_EXCLUDE_FAMILIES": " nv, triton,"}).settings.excluded_families == ("nv", "triton")
    assert load({}).settings.excluded_families == ()


@pytest.mark.parametrize("given", ["", "GPU-5d1e7a36-0f5c", "GPU-1a,MIG-2b", " GPU-1a , MIG-GPU-2b/1/0 "])
def test_gpus_are_named_by_their_uuids(given: str):
    loaded = load({"WARMUP_GPUS": given})
    assert loaded.problems == ()
    assert all(uuid.startswith(("GPU-", "MIG-")) for uuid in loaded.settings.engine_gpus)


@pytest.mark.parametrize("given", ["0", "0,1", "all", "GPU-1a;GPU-2b"])
def test_gpus_named_by_anything_else_are_refused_in_a_sentence(given: str):
    loaded = load({"WARMUP_GPUS": given})
    assert "WARMUP_GPUS" in str(loaded.problems[0])
    assert loaded.settings.engine_gpus == ()


@pytest.mark.parametrize(
    ("given", "size"), [("20Gi", 20 << 30), ("1.5G", 1_500_000_000), ("512Mi", 512 << 20), ("123", 123), ("0", 0)]
)
def test_the_size_of_the_live_caches_volume_is_written_as_in_kubernetes(given: str, size: int):
    assert Settings.model_validate({"live_cache_limit_bytes": given}).live_cache_limit_bytes == size


@pytest.mark.parametrize("given", ["20Gb", "-1Gi", "Gi", "1e3", "2Ki5", "3.Gi", "K"])
def test_a_size_that_is_none_is_refused(given: str):
    with pytest.raises(pydantic.ValidationError):
        Settings.model_validate({"live_cache_limit_bytes": given})
