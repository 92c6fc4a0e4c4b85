"""Claims about signatures: what is believed, what is refused, and that a refusal costs warmth and nothing else."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from sidecar.caches.store import open_store
from sidecar.caches.trust import KeyFiles, trust
from sidecar.errors import Untrusted
from tests.fakes import keys
from tests.fakes.stored import Stored

ROOT = Path(__file__).parents[2]


class Site(Stored):
    """One store, a live cache for each pod, two pairs of keys."""

    def __init__(self, root: Path, place: Any = None) -> None:
        super().__init__(root, place=place)
        self.ours, self.theirs = keys.pair(root, "ours"), keys.pair(root, "theirs")

    def forget(self, folder: Any) -> None:
        """Remove a generation."""
        for path in folder.iterdir():
            path.unlink()
        if isinstance(folder, Path):
            folder.rmdir()

    def folders(self) -> list[Any]:
        return sorted(self.place.glob("v1/toolchain/*/generations/*"))


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_what_a_trusted_key_signed_is_restored(site: Site) -> None:
    assert site.publish("a", **site.ours.fields).outcome == "published"
    found = site.restore(**site.ours.trusting)
    assert (found.outcome, site.kernels()) == ("partial", {"a"})
    assert not found.rejected
    assert [*found.signed.values()] == [1]


def test_a_store_without_keys_is_used_as_ever_whether_it_is_signed_or_not(site: Site) -> None:
    site.publish("a", **site.ours.fields)
    site.publish("b")
    assert site.restore().signed == {}
    assert site.kernels() == {"a", "b"}


def test_a_newer_generation_that_nobody_signed_is_passed_over_for_the_signed_one(site: Site) -> None:
    site.publish("a", **site.ours.fields)
    site.publish("b")
    found = site.restore(**site.ours.trusting)
    assert site.kernels() == {"a"}
    assert found.rejected == {"unsigned": 1}
    assert "1 generations that nobody signed" in found.sentence


def test_a_generation_of_another_key_is_passed_over(site: Site) -> None:
    site.publish("a", **site.ours.fields)
    site.publish("b", **site.theirs.fields)
    found = site.restore(**site.ours.trusting)
    assert (site.kernels(), found.rejected) == ({"a"}, {"untrusted": 1})


def test_only_refused_generations_mean_a_cold_start_that_says_why(site: Site) -> None:
    site.publish("b", **site.theirs.fields)
    found = site.restore(**site.ours.trusting)
    assert (found.outcome, found.commit, site.kernels()) == ("failed", (), set())
    assert "no trusted key's" in found.sentence


@pytest.mark.parametrize("file", ["manifest.json", "manifest.json.sig"])
def test_no_byte_of_manifest_or_signature_can_be_changed(site: Site, file: str) -> None:
    site.publish("a", **site.ours.fields)
    [generation] = site.folders()
    original = (generation / file).read_bytes()
    for place in range(0, len(original), max(1, len(original) // 15)):
        changed = bytearray(original)
        changed[place] ^= 1
        (generation / file).write_bytes(bytes(changed))
        assert site.restore(**site.ours.trusting).outcome == "failed", f"byte {place} of {file}"
        assert site.kernels() == set()
    (generation / file).write_bytes(original)
    assert site.restore(**site.ours.trusting).outcome == "partial"


def test_a_manifest_that_was_written_otherwise_but_says_the_same_is_not_the_signed_one(site: Site) -> None:
    site.publish("a", **site.ours.fields)
    path = site.folders()[0] / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text())))
    assert site.restore(**site.ours.trusting).rejected == {"untrusted": 1}


def test_a_signature_counts_for_no_other_scope_key_or_name(site: Site) -> None:
    site.publish("a", **site.ours.fields)
    [generation] = site.folders()
    signature = (generation / "manifest.json.sig").read_bytes()
    known = trust(KeyFiles(trusted=str(site.ours.public)), time.time)
    assert known is not None
    scope, key, name = good = ("toolchain", generation.parents[1].name, generation.name)
    assert known.checked(signature, good).signer.startswith("SHA256:")
    for other in (("exact", key, name), (scope, "f" * len(key), name), (scope, key, "00000009-0123456789abcdef")):
        with pytest.raises(Untrusted, match="signature of another one"):
            known.checked(signature, other)


def test_a_generation_that_was_copied_under_another_key_with_its_signature_is_refused(site: Site) -> None:
    site.publish("a", **site.ours.fields)
    [generation] = site.folders()
    other = site.place / "v1/toolchain" / ("f" * 32)
    shutil.copytree(generation, other / "generations" / generation.name)
    store = open_store(str(site.place), "read-only", lambda _s: None)
    store.trust = trust(KeyFiles(trusted=str(site.ours.public)), time.time)
    with pytest.raises(Untrusted, match="another one"):
        store.read_manifest("toolchain", other.name, generation.name)


def test_a_changed_archive_is_refused_by_the_digests_that_were_signed(site: Site) -> None:
    site.publish("a", **site.ours.fields)
    site.publish("b", **site.theirs.fields)
    first, second = (json.loads((each / "manifest.json").read_text())["packs"][-1] for each in site.folders())
    packs = site.place / "v1/packs"
    (packs / f"{first['digest']}.tar.zst").write_bytes((packs / f"{second['digest']}.tar.zst").read_bytes())
    assert site.restore(**site.ours.trusting).outcome == "failed"
    assert site.kernels() == set()


def test_a_pod_that_trusts_and_cannot_sign_publishes_nothing_and_says_who_does(site: Site) -> None:
    found = site.publish("a", **site.ours.trusting)
    assert (found.outcome, [*site.place.rglob("*")]) == ("read_only", [])
    assert "WARMUP_SIGNING_KEY_FILE" in found.sentence


def test_a_key_that_is_not_among_the_trusted_publishes_nothing(site: Site) -> None:
    found = site.publish("a", keys_file=str(site.ours.public), signing_file=str(site.theirs.private))
    assert (found.outcome, [*site.place.rglob("*")]) == ("read_only", [])
    assert "not among those of" in found.sentence


@pytest.mark.parametrize("trusting", [True, False], ids=["with trusted keys", "with a signing key alone"])
def test_who_signs_never_signs_what_somebody_else_published(site: Site, trusting: bool) -> None:
    site.publish("a", **site.ours.fields)
    site.publish("planted")
    site.publish("b", signing_file=str(site.ours.private), keys_file=str(site.ours.public) if trusting else "")
    assert len(site.folders()) == 3
    site.restore(**site.ours.trusting)
    assert site.kernels() == {"a", "b"}


def test_files_of_a_quarantined_generation_stay_out_though_its_key_is_trusted_no_longer(site: Site) -> None:
    poisoned = site.publish("a", **site.ours.fields).generations["toolchain"]
    site.store.quarantine("toolchain", site.key, poisoned, {"reason": "deaths"})
    again = site.publish("a", "b", **site.theirs.fields)
    assert again.skipped["quarantined"] == 2
    site.restore(**site.theirs.trusting)
    assert site.kernels() == {"b"}


def test_who_signs_never_restores_what_nobody_signed(site: Site) -> None:
    site.publish("planted")
    assert site.restore(signing_file=str(site.ours.private)).rejected == {"unsigned": 1}


def test_an_old_generation_that_was_put_back_is_noticed_and_not_used(site: Site) -> None:
    for kernel in "abc":
        site.publish(kernel, **site.ours.fields)
    seen = dict(site.restore(**site.ours.trusting).signed)
    assert [*seen.values()] == [3]
    for generation in site.folders()[1:]:
        site.forget(generation)
    found = site.restore(**site.ours.trusting, seen=seen)
    # Some servers of buckets go on listing what is gone, which is counted then.
    assert (found.outcome, set(found.rejected)) == ("failed", {"rolled_back"})
    assert "gone from the store" in found.sentence
    assert site.restore(**site.ours.trusting).outcome == "partial", "a pod that saw nothing can't know"


def test_a_quarantined_newer_generation_is_no_rollback(site: Site) -> None:
    for kernel in "ab":
        site.publish(kernel, **site.ours.fields)
    seen = dict(site.restore(**site.ours.trusting).signed)
    newest = site.folders()[-1]
    store = open_store(str(site.place), "read-write", lambda _s: None)
    store.quarantine("toolchain", newest.parents[1].name, newest.name, {"reason": "by anybody"})
    found = site.restore(**site.ours.trusting, seen=seen)
    assert (site.kernels(), found.rejected) == ({"a"}, {"quarantined": 1})


def test_no_pod_claims_a_generation_that_it_does_not_believe(site: Site) -> None:
    site.publish("a", **site.ours.fields)
    first = site.folders()[0]
    store = open_store(str(site.place), "read-write", lambda _s: None)
    store.record_boot("toolchain", first.parents[1].name, f"{first.name}.ready.x", {"outcome": "ready"})
    site.publish("planted")
    found = site.restore(**site.ours.trusting, holder="pod-1")
    assert (found.claims, [*site.place.rglob("claims")]) == ((), [])


def test_a_file_of_keys_that_cannot_be_read_means_a_cold_start_with_a_sentence(site: Site) -> None:
    site.publish("a", **site.ours.fields)
    found = site.restore(keys_file=str(site.root / "missing"))
    assert (found.outcome, found.commit) == ("failed", ())
    assert "WARMUP_TRUSTED_KEYS_FILE" in found.sentence
    assert site.publish("b", keys_file=str(site.root / "missing")).outcome == "failed"


def test_a_worker_without_keys_never_loads_the_library_for_signatures(site: Site) -> None:
    asked = (
        "import sys, time; from tests.unit.test_caches_signing import Site; from pathlib import Path\n"
        "for name in [each for each in sys.modules if 'cryptography' in each]: del sys.modules[name]\n"
        "site = Site.__new__(Site); site.root = Path(sys.argv[1])\n"
        "site.place, site.live = site.root / 'store', site.root / 'live'\n"
        "site.publish('a'); site.restore()\n"
        "print([each for each in sys.modules if 'cryptography' in each])"
    )
    done = subprocess.run(
        [sys.executable, "-c", asked, str(site.root)], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"
