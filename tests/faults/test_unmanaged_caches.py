"""A compiler that no family knows: its directory is reported with path and size, wherever the engine has it."""

from __future__ import annotations

from pathlib import Path

from tests.faults.rig import PATIENCE_S, Container, Pod, until

#: An engine whose compilers write where nobody expects it, before it serves.
ENGINE = """
mkdir -p "$TRITON_CACHE_DIR/../newcompiler" "$HOME/.othercompiler/cache"
head -c 300000 /dev/zero > "$TRITON_CACHE_DIR/../newcompiler/kernel.bin"
head -c 200000 /dev/zero > "$HOME/.othercompiler/cache/kernel.bin"
exec "$@"
"""


def test_directories_in_no_family_that_grow_are_told_with_path_and_size(pod: Pod, tmp_path: Path) -> None:
    script = pod.place.script.with_name("grows.sh")
    script.write_text(ENGINE)
    extra = tmp_path / "extra"
    extra.mkdir()
    daemon = pod.start_daemon(extra_roots=extra, unmanaged_interval_s=1)
    container = Container(pod, ["/bin/sh", str(script), *pod.engine_command()], {}, ())
    try:
        daemon.wait_until_ready(PATIENCE_S)
        (extra / "kernel.bin").write_bytes(bytes(400_000))
        wanted = {str(pod.place.live_cache / "newcompiler"), str(pod.place.home / ".othercompiler"), str(extra)}
        until(lambda: wanted <= {one["path"] for one in daemon.status()["cache"].get("unmanaged", ())}, "all three")
        daemon.told("newcompiler grew by 0.3 MB", "belongs to no cache family")
        assert 'warmup_sidecar_unmanaged_cache_bytes{path="' in daemon.get("/metrics")[1]
    finally:
        container.close()
