"""Any tree that a compiler could leave, and a crash at any disk step: what comes back is what was there."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from sidecar.caches.commit import commit
from sidecar.caches.confinement import is_confined, is_confined_link
from sidecar.caches.families import BY_NAME, is_left_out, stored_families
from sidecar.caches.messages import PublishRequest, RestoreRequest
from sidecar.caches.publish import PublishTools, publish
from sidecar.caches.restore import RestoreTools, restore
from sidecar.caches.snapshot import AHEAD_NS
from sidecar.caches.validity import NEVER_EMPTY
from tests.fakes import live_cache as fake

#: Kept by the file, whatever its name: what makes an entry of the others whole is tested with them.
FAMILIES = ("inductor", "nv", "quack", "cute_dsl")
DIED = 77

words = st.text(st.characters(exclude_characters="/\0", exclude_categories=("Cs",)), min_size=1, max_size=24)
odd = st.sampled_from(
    ["..x", ".hidden", "a b", "Δ", "e\u0301", "new\nline", "x" * 200, "-rf", "k.cubin", "\udc80", "~", "*"]
)
names = st.one_of(words, odd).filter(lambda name: name not in (".", "..") and len(os.fsencode(name)) < 250)
paths = st.lists(names, min_size=1, max_size=6).map("/".join)
modes = st.sampled_from([0o600, 0o644, 0o664, 0o755, 0o400, 0o4755, 0o2711])
times = st.integers(0, (1 << 61)).map(lambda ns: ns - ns % 100) | st.just(fake.OLD_NS)
files = st.tuples(st.binary(max_size=300), modes, times)
links = st.tuples(st.sampled_from(["x", "../x", "a/b", "/etc/passwd", "../../../../x"]), st.just(0), times)
trees = st.dictionaries(st.tuples(st.sampled_from(FAMILIES), paths), files | links, max_size=12)
Tree = dict[tuple[str, str], tuple[bytes | str, int, int]]


def lay(live: Path, tree: Tree) -> Tree:
    """Write a tree; gives what of it could be written, for a path may be in the way of another."""
    written = {}
    for (family, path), (content, mode, mtime_ns) in tree.items():
        place = live / BY_NAME[family].directory / path
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, str):
                place.symlink_to(content)
            else:
                with open(place, "xb") as stream:
                    stream.write(content)
                place.chmod(mode)
            os.utime(place, ns=(mtime_ns, mtime_ns), follow_symlinks=False)
        except OSError:
            continue
        written[family, path] = (content, mode, mtime_ns)
    return written


def travels(family: str, path: str, content: bytes | str, mtime_ns: int) -> bool:
    """Say what is declared: no locks and temporary names, nothing that leads out, nothing cut, nothing still changing."""
    if is_left_out(BY_NAME[family], path) or not is_confined(path) or 0 < mtime_ns - (time.time() - 5) * 1e9 < AHEAD_NS:
        return False
    if isinstance(content, str):
        return is_confined_link(path, content)
    return bool(content) or not path.endswith(NEVER_EMPTY)


def found(live: Path) -> Tree:
    return {
        (family.name, path): (entry[0], entry[2], entry[1])
        for family in stored_families()
        for path, entry in fake.tree(live / family.directory).items()
    }


def shared(mode: int) -> int:
    """Give the group all that the owner may do; nobody else may write; no file is setuid."""
    owner, group, others = mode >> 6 & 7, mode >> 3 & 5, mode & 5
    return owner << 6 | (owner | group) << 3 | others


def of(family: str, tree: Tree) -> Tree:
    return {place: entry for place, entry in tree.items() if place[0] == family}


def expected(written: Tree) -> Tree:
    return {
        place: (content, 0 if isinstance(content, str) else shared(mode), mtime_ns)
        for place, (content, mode, mtime_ns) in written.items()
        if travels(*place, content, mtime_ns)
    }


class Pod:
    """A live cache and a store in a folder of their own."""

    def __init__(self, root: Path) -> None:
        self.live, self.store = root / "live", root / "store"
        self.live.mkdir()
        self.store.mkdir()

    def publish(self, step: Callable[[str], None] = lambda _step: None) -> None:
        tools = PublishTools(clock=time.monotonic, now=time.time, sleep=time.sleep, checkpoint=step)
        said = publish(
            PublishRequest(store=str(self.store), live_cache=str(self.live), facts=fake.facts(), attempt="p"), tools
        )
        assert said.outcome in ("published", "nothing_new"), said.sentence

    def restore(self, step: Callable[[str], None] = lambda _step: None) -> None:
        tools = RestoreTools(clock=time.monotonic, sleep=time.sleep, checkpoint=step)
        request = RestoreRequest(store=str(self.store), live_cache=str(self.live), facts=fake.facts(), attempt="1-1-ab")
        result = restore(request, tools)
        assert result.outcome in ("hit", "partial", "miss"), result.sentence
        assert commit(self.live, result.commit, result.clear, step).failed == {}

    def wipe(self) -> None:
        shutil.rmtree(self.live)
        self.live.mkdir()


def dying(action: Callable[[Callable[[str], None]], None], at: int) -> None:
    """Do something in a process that ends at its disk step number `at`, as a node's failure would end it."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            left = [at]

            def step(_step: str) -> None:
                left[0] -= 1
                if not left[0]:
                    os._exit(DIED)

            action(step)
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) in (0, DIED)


# Not made smaller when one fails: that would take minutes, and the tree is small as it is.
bounded = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
)


@bounded
@given(trees)
def test_any_tree_comes_back_as_it_was_but_for_what_is_declared_not_to_travel(tree: Tree) -> None:
    with tempfile.TemporaryDirectory() as folder:
        pod = Pod(Path(folder))
        written = lay(pod.live, tree)
        pod.publish()
        pod.wipe()
        pod.restore()
        assert found(pod.live) == expected(written)


@settings(bounded, max_examples=25)
@given(trees, trees, st.integers(1, 14), st.integers(1, 20))
def test_a_crash_at_any_step_and_then_another_try_come_to_the_same_end(
    tree: Tree, before: Tree, first: int, second: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        pod = Pod(Path(folder))
        written = lay(pod.live, tree)
        dying(pod.publish, first)
        pod.publish()
        pod.wipe()
        lay(pod.live, before)
        old, new = found(pod.live), expected(written)
        dying(pod.restore, second)
        for family in FAMILIES:
            assert of(family, found(pod.live)) in (of(family, old), of(family, new), {}), f"{family} is half"
        pod.restore()
        assert found(pod.live) == new
