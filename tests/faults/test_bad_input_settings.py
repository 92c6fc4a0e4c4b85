"""Settings, profiles, directories and ports that can't be used: each a sentence that says what to do, and the engine starts."""

from __future__ import annotations

import contextlib
import http.server
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.rig import PATIENCE_S, PROFILE, Daemon, Pod, throughout, until


def ready_although(pod: Pod, *words: str, flagged: bool = False, **changes: Any) -> Daemon:
    """Start a pod with something wrong: it is told with these words, and becomes ready."""
    daemon = pod.start(**changes)
    degraded = "\n".join(daemon.status()["degraded"])
    assert all(word in degraded for word in words), degraded
    assert daemon.status()["flagged"] is flagged
    return daemon


# --- settings -------------------------------------------------------------------------------------------------------


@pytest.mark.side_by_side
def test_an_unknown_setting_is_told_with_the_one_that_was_meant(pod: Pod):
    ready_although(pod, "WARMUP_STROE", "Did you mean WARMUP_STORE?", stroe="/mnt/store")


@pytest.mark.side_by_side
def test_a_wrong_value_is_told_and_the_default_counts(pod: Pod):
    daemon = ready_although(pod, "WARMUP_STALL_S", "'soon'", "120", stall_s="soon")
    assert len(daemon.status()["degraded"]) == 1


@pytest.mark.side_by_side
def test_a_broken_settings_file_is_told_with_its_place(pod: Pod):
    file = pod.root / "settings.yaml"
    file.write_text("store: [\n")
    ready_although(pod, str(file), "not valid YAML", "line 2", config=file)


@pytest.mark.side_by_side
def test_a_settings_file_that_is_missing_is_told(pod: Pod):
    ready_although(pod, "/nowhere/settings.yaml", "WARMUP_CONFIG", config="/nowhere/settings.yaml")


@pytest.mark.side_by_side
def test_an_unknown_flag_is_told_and_left_out(pod: Pod):
    daemon = pod.start_daemon(wrapper=["sh", "-c", 'exec "$@" --no-such-flag', "sh"])
    pod.start_container()
    daemon.wait_until_ready(PATIENCE_S)
    assert "--no-such-flag" in daemon.notices()


# --- profiles -------------------------------------------------------------------------------------------------------


@pytest.mark.side_by_side
@pytest.mark.parametrize(
    ("profile", "words"),
    [
        (PROFILE.replace("tokens: [1, 17]", "tokns: [1]"), ("tokns", "did you mean `tokens`")),
        ("description: [", ("few.yaml",)),
        (None, ("few.yaml", "No such file")),
    ],
    ids=["wrong field", "not YAML", "missing"],
)
def test_a_profile_that_can_t_be_used_is_told_and_another_is_taken(
    pod: Pod, profile: str | None, words: tuple[str, ...]
):
    pod.profile.unlink() if profile is None else pod.profile.write_text(profile)
    daemon = ready_although(pod, "WARMUP_PROFILE", *words)
    assert daemon.status()["warmup"]["profile"] == "cpu"


@pytest.mark.side_by_side
def test_a_length_beyond_the_model_is_cut_and_told(pod: Pod):
    pod.profile.write_text(PROFILE.replace("17", "100000"))
    daemon = pod.start(script={"max_model_len": 512})
    assert "100000" in daemon.notices()
    assert daemon.status()["flagged"] is False
    assert max(one["prompt_tokens"] for one in pod.engine()["requests"]) < 512


# --- the store ------------------------------------------------------------------------------------------------------


@pytest.mark.side_by_side
def test_a_store_that_is_missing_is_told(pod: Pod):
    daemon = pod.start(store="/nowhere/store")
    assert "/nowhere/store" in daemon.told("Restore: failed", "Publish: failed")
    assert daemon.status()["flagged"] is False


@pytest.mark.side_by_side
def test_a_store_that_is_a_file_is_told(pod: Pod):
    file = pod.root / "file"
    file.touch()
    assert str(file) in pod.start(store=file).told("Restore: failed", "Publish: failed")


@pytest.mark.side_by_side
def test_a_store_that_may_not_be_written_is_left_alone(pod: Pod):
    daemon = pod.start(store_mode="read-only")
    daemon.told("Publish: read_only")
    assert not any(pod.directories.store.iterdir())


def in_a_namespace(*mounts: str) -> list[str]:
    """Give a command that mounts something for itself alone and becomes what follows; skip where that can't be done."""
    possible = os.geteuid() == 0 and subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode == 0
    if not possible:
        pytest.skip("mounts need root and unshare(1)")
    return ["unshare", "-m", "sh", "-ec", "\n".join([*mounts, 'exec "$@"']), "sh"]


def test_a_store_mounted_read_only_serves_and_is_told_once_something_is_new(pod: Pod, planted):
    store = pod.directories.store
    wrapper = in_a_namespace(f"mount --bind {store} {store}", f"mount -o remount,bind,ro {store}")
    daemon = pod.start(wrapper=wrapper, script={"bucket_tokens": 7})
    assert daemon.status()["restore"]["outcome"] == "hit"
    assert "WARMUP_STORE_MODE" in daemon.told("Publish: read_only")


@pytest.mark.side_by_side
def test_a_full_store_is_told_and_holds_nothing_half(pod: Pod):
    full = pod.root / "full"
    full.mkdir()
    # Room for the directories, none for a pack.
    wrapper = in_a_namespace(f"mount -t tmpfs -o size=16k tmpfs {full}")
    daemon = pod.start_daemon(wrapper=wrapper, store=full)
    pod.start_container()
    planted_kernels(pod)
    daemon.wait_until_ready(PATIENCE_S)
    assert str(full) in daemon.told("Publish: failed", "space")
    store = Path(f"/proc/{daemon.process.pid}/root{full}")
    assert not [*store.glob("v1/toolchain/*/generations/*"), *store.rglob("*.tmp*")]


def planted_kernels(pod: Pod) -> None:
    """Leave something in the live cache that does not fit into a small store."""
    pod.engine_pid()
    folder = pod.place.live_cache / "triton" / ("A" * 52)
    folder.mkdir()
    (folder / "big.cubin").write_bytes(os.urandom(1 << 18))


# --- the live cache -------------------------------------------------------------------------------------------------


@pytest.mark.side_by_side
def test_a_live_cache_that_can_t_be_written_is_told_and_the_engine_keeps_its_own(pod: Pod):
    file = pod.root / "file"
    file.touch()
    daemon = ready_although(pod, str(file), "WARMUP_LIVE_CACHE", live_cache=file / "live")
    assert pod.decision()["by"] == "sidecar"
    assert daemon.status()["restore"]["outcome"] == "disabled"
    assert daemon.status()["publish"]["outcome"] == "disabled"


@pytest.mark.side_by_side
def test_a_live_cache_of_another_daemon_is_told_and_not_touched(pod: Pod):
    other = pod.neighbour()
    other.start()
    before = {path: path.stat().st_mtime_ns for path in pod.place.live_cache.rglob("*")}
    ready_although(pod, "in use by another daemon", "WARMUP_LIVE_CACHE")
    assert {path: path.stat().st_mtime_ns for path in pod.place.live_cache.rglob("*")} == before
    assert other.daemon.is_ready


# --- ports and the control directory --------------------------------------------------------------------------------


@pytest.mark.side_by_side
def test_a_port_that_is_taken_is_told_and_opened_once_it_is_free(pod: Pod):
    port = int(pod.listen.rpartition(":")[2])
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        pod.launch_daemon()
        pod.start_container()
        until(pod.engine_answers, "an engine that starts all the same")
        until(lambda: pod.listen in pod.log.read_text(), "a sentence in the log")
        assert pod.daemon.process.poll() is None
    pod.daemon.wait_until_ready(PATIENCE_S)
    assert pod.daemon.status()["degraded"] == []
    assert "WARMUP_LISTEN" in pod.daemon.notices()


@pytest.mark.side_by_side
def test_a_control_directory_of_another_daemon_is_told_and_taken_over_at_its_end(pod: Pod):
    first = pod.start()
    second = pod.start_daemon(listen=pod.other_address(), live_cache=pod.root / "second")
    assert "WARMUP_CONTROL_DIR" in second.told("Another sidecar uses the control directory", str(pod.control))
    assert first.is_ready
    assert first.stop() == 0
    second.wait_until_ready(PATIENCE_S)
    assert second.status()["degraded"] == []


@pytest.mark.side_by_side
def test_a_control_directory_that_can_t_be_made_is_told(pod: Pod):
    file = pod.root / "file"
    file.touch()
    daemon = pod.start_daemon(control_dir=file / "control")
    pod.start_bare_engine()
    daemon.wait_until_ready(PATIENCE_S)
    assert "WARMUP_CONTROL_DIR" in daemon.told(str(file))


# --- the engine's address -------------------------------------------------------------------------------------------


@contextlib.contextmanager
def serving(port: int, handler: type[http.server.BaseHTTPRequestHandler]) -> Iterator[None]:
    """Serve HTTP that is no engine's."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", port), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


class Website(http.server.BaseHTTPRequestHandler):
    """Answers everything with a page."""

    def do_GET(self) -> None:
        """Answer."""
        page = b"<html>It works!</html>"
        self.send_response(200)
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.mark.side_by_side
def test_something_that_is_no_engine_is_told_and_never_ready(pod: Pod):
    address = pod.other_address()
    with serving(int(address.rpartition(":")[2]), Website):
        daemon = pod.start_daemon(engine_url=f"http://{address}")
        pod.start_container()
        until(pod.engine_answers, "an engine that starts all the same")
        until(lambda: "WARMUP_ENGINE_URL" in daemon.readyz()[1], "a sentence in the probe's body")
        throughout(1, lambda: not daemon.is_ready, "unready")


@pytest.mark.side_by_side
def test_garbage_that_is_not_http_is_told_and_never_ready(pod: Pod):
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=greet, args=(server,))
        thread.start()
        daemon = pod.start_daemon(engine_url=f"http://127.0.0.1:{server.getsockname()[1]}")
        pod.start_container()
        until(lambda: "WARMUP_ENGINE_URL" in daemon.readyz()[1], "a sentence in the probe's body")
        throughout(1, lambda: not daemon.is_ready, "unready")
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def greet(server: socket.socket) -> None:
    """Greet everybody as a mail server would, until the socket is shut."""
    with contextlib.suppress(OSError):
        while True:
            client, _ = server.accept()
            with client:
                client.sendall(b"\xff\xfe220 mail.example ESMTP\r\n")


@pytest.mark.side_by_side
def test_an_address_taken_by_another_process_is_named_when_the_engine_ends(pod: Pod):
    daemon = pod.start_daemon()
    with serving(pod.port, Website):
        pod.start_container()
        pod.container.process.wait(PATIENCE_S)
        until(
            lambda: "Something else listens on the engine's port" in daemon.readyz()[1],
            "a sentence in the probe's body",
        )
    pod.start_container()
    daemon.wait_until_ready(PATIENCE_S)
