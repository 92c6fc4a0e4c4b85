"""`store keygen`, `sign`, `gc`, `export` and `import`, as people call them, on stores that real publishes made."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from sidecar.commands.store import command
from sidecar.errors import KeysUnusable, NotSo, StoreDamaged, UsageError
from tests.fakes.keys import pair
from tests.fakes.stored import SCOPE, Stored


def run(*words: str, env: dict[str, str] | None = None) -> tuple[int, str]:
    result = CliRunner().invoke(command, words, standalone_mode=False, env=env)
    if result.exception is not None:
        raise result.exception
    return int(result.return_value or 0), result.stdout


@pytest.fixture
def stored(tmp_path: Path) -> Stored:
    found = Stored(tmp_path)
    found.publish("a")
    found.publish("b")
    return found


def test_keys_are_made_sign_what_is_there_and_verify_says_so(stored: Stored) -> None:
    key, where = stored.root / "signing-key", ("--store", str(stored.place))
    code, said = run("keygen", str(key))
    assert (code, "ssh-ed25519 " in said) == (0, True)
    trusting = {"WARMUP_TRUSTED_KEYS_FILE": str(key) + ".pub"}
    code, said = run("verify", *where, env=trusting)
    assert (code, said.count("is not signed")) == (3, 2)
    assert run("sign", "--all", "--key", str(key), *where)[0] == 0
    assert "already" in run("sign", "--all", "--key", str(key), *where)[1]
    code, said = run("verify", "--deep", *where, env=trusting)
    assert (code, "signed by a trusted key" in said) == (0, True)
    stored.restore(keys_file=str(key) + ".pub")
    assert stored.kernels() == {"a", "b"}


def test_ls_calls_what_nobody_signed_untrusted(stored: Stored) -> None:
    env = {"WARMUP_TRUSTED_KEYS_FILE": str(pair(stored.root).public)}
    listed = json.loads(run("ls", "--json", "--store", str(stored.place), env=env)[1])
    assert {each["state"] for each in listed} == {"untrusted"}


def test_one_generation_can_be_signed_and_one_that_is_damaged_is_not(stored: Stored) -> None:
    keys, name = pair(stored.root), stored.generations()[-1]
    words = ("--key", str(keys.private), "--store", str(stored.place))
    assert run("sign", name, *words)[0] == 0
    manifest = next(stored.place.glob(f"v1/*/*/generations/{name}/manifest.json"))
    manifest.write_text("{")
    assert run("sign", name, *words)[0] == 3


def test_signing_without_a_key_or_without_a_wish_is_wrong_use(stored: Stored) -> None:
    with pytest.raises(UsageError, match="WARMUP_SIGNING_KEY_FILE"):
        run("sign", "--all", "--store", str(stored.place))
    with pytest.raises(UsageError, match="--all"):
        run("sign", "--key", str(pair(stored.root).private), "--store", str(stored.place))


def test_a_change_of_keys_signs_what_is_believed_and_nothing_that_somebody_planted(stored: Stored) -> None:
    old, new = pair(stored.root, "old"), pair(stored.root, "new")
    first, planted = stored.generations()
    where, both = ("--store", str(stored.place)), stored.root / "both"
    run("sign", first, "--key", str(old.private), *where)
    both.write_text(old.public.read_text() + new.public.read_text())
    env = {"WARMUP_TRUSTED_KEYS_FILE": str(both)}
    code, said = run("sign", "--all", "--key", str(new.private), *where, env=env)
    assert (code, f"{first} is signed." in said, f"{planted} is not signed" in said) == (3, True, True)
    stored.restore(**new.trusting)
    assert stored.kernels() == {"a"}
    assert run("sign", planted, "--key", str(new.private), *where, env=env)[0] == 0


def test_a_key_that_is_not_trusted_here_replaces_no_signature(stored: Stored) -> None:
    old, new = pair(stored.root, "old"), pair(stored.root, "new")
    where, env = ("--store", str(stored.place)), {"WARMUP_TRUSTED_KEYS_FILE": str(old.public)}
    run("sign", "--all", "--key", str(old.private), *where)
    for words in (("--all",), stored.generations()):
        with pytest.raises(KeysUnusable, match=r"Nothing is signed.* is not among those of"):
            run("sign", *words, "--key", str(new.private), *where, env=env)
    assert run("verify", *where, env=env)[0] == 0


def test_show_says_of_a_generation_that_nobody_signed_that_it_is_untrusted(stored: Stored) -> None:
    words = ("show", stored.generations()[-1], "--store", str(stored.place))
    env = {"WARMUP_TRUSTED_KEYS_FILE": str(pair(stored.root).public)}
    assert "State: untrusted." in run(*words, env=env)[1]
    assert json.loads(run(*words, "--json", env=env)[1])["state"] == "untrusted"


def test_verify_looks_at_every_archive_though_one_is_no_file(stored: Stored) -> None:
    first, second = sorted(stored.place.glob("v1/packs/*"))
    first.unlink()
    first.mkdir()
    second.write_bytes(second.read_bytes()[:-1] + b"x")
    code, said = run("verify", "--deep", "--store", str(stored.place))
    assert (code, "is not a plain file" in said, "not what its name says" in said) == (3, True, True)


def test_no_name_is_no_generation(stored: Stored) -> None:
    with pytest.raises(UsageError, match="No generation is named"):
        run("quarantine", "", "--reason", "an empty variable", "--store", str(stored.place))


def test_a_wrong_file_of_keys_is_a_sentence_for_every_command_that_needs_it(stored: Stored) -> None:
    with pytest.raises(KeysUnusable, match="can't be read"):
        run("verify", "--store", str(stored.place), env={"WARMUP_TRUSTED_KEYS_FILE": "/not/there"})


def test_a_quarantine_tells_of_those_that_were_built_on_it_and_takes_them_too_when_asked(stored: Stored) -> None:
    stored.publish("a", "b", "c")
    first, second, third = stored.generations()
    words = ("quarantine", first, "--reason", "wrong output", "--store", str(stored.place))
    code, said = run(*words)
    assert (code, f"{second}, {third}" in said, "--descendants" in said) == (0, True, True)
    stored.restore()
    assert stored.kernels() == {"a", "b", "c"}
    code, said = run(*words, "--descendants")
    assert (code, "is cold" in said) == (0, True)
    assert stored.restore().outcome == "miss"


def test_a_quarantine_is_taken_back_from_those_that_were_built_on_it_too_when_asked(stored: Stored) -> None:
    stored.publish("a", "b", "c")
    first, second, third = stored.generations()
    place = ("--store", str(stored.place))
    run("quarantine", first, "--reason", "wrong output", "--descendants", *place)
    code, said = run("unquarantine", first, *place)
    assert (code, f"stay quarantined: {second}, {third}." in said, "--descendants" in said) == (0, True, True)
    stored.restore()
    assert stored.kernels() == {"a"}
    code, said = run("unquarantine", first, "--descendants", *place)
    assert (code, said.count("may be used again"), "stay quarantined" in said) == (0, 2, False)
    stored.restore()
    assert stored.kernels() == {"a", "b", "c"}
    assert run("unquarantine", first, "--descendants", *place)[0] == 3


def test_ls_names_generations_that_are_gone_and_whose_files_are_held_back_and_how_to_lift_that(stored: Stored) -> None:
    bad, place = stored.generations()[-1], ("--store", str(stored.place))
    stored.store.keep_unfit(SCOPE, stored.key, bad)
    assert "gone" not in run("ls", *place)[1]
    stored.store.remove_generation(SCOPE, stored.key, bad)
    assert [each["name"] for each in json.loads(run("ls", "--json", *place)[1]) if each["state"] == "removed"] == [bad]
    for other in stored.generations():
        stored.store.remove_generation(SCOPE, stored.key, other)
    said = run("ls", *place)[1]
    assert ("never published again" in said, "is empty" in said) == (True, False)
    lift = re.search(r"`warmup-sidecar store (unquarantine \S+)`", said)
    assert lift is not None
    code, told = run(*lift[1].split(), *place)
    assert (code, "is gone; what pods still have of it may be published again" in told) == (0, True)
    assert "gone" not in run("ls", *place)[1]


def test_a_generation_between_that_is_gone_or_damaged_hides_no_descendant(stored: Stored) -> None:
    stored.publish("a", "b", "c")
    first, second, third = stored.generations()
    folder = stored.place / f"v1/{SCOPE}/{stored.key}/generations" / second
    words = ("quarantine", first, "--reason", "wrong output", "--store", str(stored.place))
    (folder / "manifest.json").write_text("{")
    assert f"holds its files too: {third}." in run(*words)[1]
    shutil.rmtree(folder)
    assert f"holds its files too: {third}." in run(*words)[1]
    assert "holds its files too" not in run("quarantine", third, "--reason", "x", "--store", str(stored.place))[1]


def test_gc_says_what_goes_and_why_and_a_dry_run_keeps_it(stored: Stored) -> None:
    before = stored.generations()
    for path in stored.place.glob("v1/*/*/generations/*/manifest.json"):
        text = path.read_text()
        made = json.loads(text.partition("\n")[0] + "]}")["created_unix_s"]
        path.write_text(text.replace(str(made), str(made - 90000), 1))
    words = ("gc", "--store-keep-count", "1", "--store", str(stored.place))
    code, said = run(*words, "--dry-run")
    assert (code, "its key has 1 newer ones" in said, stored.generations()) == (0, True, before)
    code, said = run(*words, "--json")
    assert (code, [each["name"] for each in json.loads(said)["generations"]]) == (0, before[:1])
    assert stored.generations() == before[1:]


def test_gc_that_cannot_reach_the_limit_says_so_and_ends_with_three(stored: Stored) -> None:
    code, said = run("gc", "--store-limit-bytes", "1", "--store", str(stored.place))
    assert (code, "over the limit" in said) == (3, True)


def test_a_store_travels_in_a_file(stored: Stored, tmp_path: Path) -> None:
    there, file = Stored(tmp_path, "there"), tmp_path / "kernels.tar"
    assert "1 generations" in run("export", str(file), "--store", str(stored.place))[1]
    assert "is imported" in run("import", str(file), "--store", str(there.place))[1]
    run("quarantine", stored.generations()[-1], "--reason", "wrong output", "--store", str(there.place))
    said = run("import", str(file), "--store", str(there.place))[1]
    assert ("is there already" in said, "is quarantined in this store" in said) == (True, True)
    run("unquarantine", stored.generations()[-1], "--store", str(there.place))
    assert "quarantined" not in run("import", str(file), "--store", str(there.place))[1]
    there.restore()
    assert there.kernels() == {"a", "b"}


def test_a_store_travels_as_an_image(stored: Stored, tmp_path: Path) -> None:
    there, folder = Stored(tmp_path, "there"), tmp_path / "image"
    code, said = run("export", str(folder), "--oci", "--tag", "v2", "--store", str(stored.place))
    assert (code, "tagged v2" in said) == (0, True)
    assert "is imported" in run("import", str(folder), "--store", str(there.place))[1]
    there.restore()
    assert there.kernels() == {"a", "b"}
    with pytest.raises(UsageError, match="already, and not empty"):
        run("export", str(folder), "--oci", "--store", str(stored.place))
    with pytest.raises(UsageError, match="don't go together"):
        run("export", str(folder), "--oci", "--every", "--store", str(stored.place))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--oci", "--tag", ""), "is no tag"),
        (("--oci", "--tag", "a b"), "is no tag"),
        (("--oci", "--tag", "name:v1"), "is no tag"),
        (("--tag", "v1"), "goes with --oci only"),
    ],
)
def test_a_tag_that_no_registry_takes_or_that_names_nothing_is_wrong_use(
    stored: Stored, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        run("export", str(tmp_path / "image"), *words, "--store", str(stored.place))
    assert not (tmp_path / "image").exists()


def test_a_folder_that_is_no_image_is_told_from_one(stored: Stored) -> None:
    with pytest.raises(UsageError, match="no OCI image layout"):
        run("import", str(stored.place), "--store", str(stored.place))


def test_an_export_that_fails_leaves_no_file(stored: Stored, tmp_path: Path) -> None:
    file = tmp_path / "kernels.tar"
    for pack in stored.place.glob("v1/packs/*"):
        pack.write_bytes(b"damaged")
    with pytest.raises(StoreDamaged):
        run("export", str(file), "--store", str(stored.place))
    for wrong in ("ffff", ""):
        with pytest.raises(NotSo, match="begins with"):
            run("export", str(file), "--key", stored.key[:8], "--key", wrong, "--store", str(stored.place))
    assert [path.name for path in tmp_path.iterdir() if "kernels" in path.name] == []


def test_a_missing_file_is_wrong_use(stored: Stored) -> None:
    for name in ("/not/there.tar", str(stored.root / ("x" * 300))):
        with pytest.raises(UsageError, match="can't be read"):
            run("import", name, "--store", str(stored.place))
