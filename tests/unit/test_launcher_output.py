"""The engine's output: every byte passed on, lines of interest and last words kept."""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.handshake import Line
from tests.unit.launching import SHELL, Stage, open_pipe, output, until

PYTHON = (sys.executable, "-I", "-S", "-c")


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    yield made
    made.close()


def test_output_is_relayed_byte_for_byte(stage: Stage):
    wanted = bytes(range(256)) * 20000 + b"\x00\xff\r\n\n no newline at the end \xc3"
    (stage.root / "wanted").write_bytes(wanted)
    script = f"cat {stage.root}/wanted; printf 'and \\377 errors' >&2"
    _, process = stage.started(SHELL, "-c", script, env={"PATH": "/bin:/usr/bin"})
    out, err = process.communicate(timeout=30)
    assert hashlib.sha256(out).digest() == hashlib.sha256(wanted).digest()
    assert err == b"and \xff errors"


def test_one_destination_for_both_keeps_the_order(stage: Stage):
    script = "import os\nfor i in range(2000): os.write(1 + i % 2, b'%d\\n' % i)"
    _, process = stage.started(*PYTHON, script, stderr=subprocess.STDOUT)
    out, _ = process.communicate(timeout=30)
    assert [int(line) for line in out.split()] == list(range(2000))


def test_a_slow_reader_loses_nothing(stage: Stage):
    source, end = open_pipe()
    _, process = stage.started(*PYTHON, "import os\nfor i in range(3000): os.write(1, b'%08d' % i * 512)", stdout=end)
    os.close(end)
    got = bytearray()

    def read() -> None:
        while chunk := os.read(source, 7919):
            got.extend(chunk)

    reader = threading.Thread(target=read)
    # Not before the engine waits for somebody to read.
    until(lambda: stage.sidecar.current(), "a running engine")
    reader.start()
    process.wait(60)
    reader.join()
    os.close(source)
    assert bytes(got) == b"".join(b"%08d" % i * 512 for i in range(3000))


def test_a_reader_that_is_gone_does_not_end_the_engine(stage: Stage):
    source, end = open_pipe()
    script = "import os, time\nfor i in range(200): os.write(1, b'x' * 1000)\nos.write(2, b'done')"
    attempt, process = stage.started(
        *PYTHON, f"input(); {script!r}; exec({script!r})", stdout=end, stdin=subprocess.PIPE
    )
    os.close(end)
    os.close(source)
    _, err = process.communicate(b"\n", timeout=30)
    assert (err, process.returncode) == (b"done", 0)
    assert stage.sidecar.state(attempt).exited is not None


def test_what_an_engine_says_is_heard_although_nobody_reads_it(stage: Stage):
    source, end = open_pipe()
    room = fcntl.fcntl(end, fcntl.F_SETPIPE_SZ, 4096)
    os.write(end, b"." * room)
    attempt, _ = stage.started(SHELL, "-c", "echo 'ValueError: the end'; exec /bin/sleep 60", stdout=end)
    found = until(lambda: stage.sidecar.new_lines(attempt), "a line")
    assert [line.text for line in found] == ["ValueError: the end"]
    os.close(end)
    os.close(source)


def test_descriptors_and_standard_input_reach_the_engine(stage: Stage):
    source, end = open_pipe()
    os.write(end, b"by descriptor\n")
    os.close(end)
    _, process = stage.started(
        SHELL,
        "-c",
        f"cat; cat /dev/fd/{source}",
        env={"PATH": "/bin:/usr/bin"},
        stdin=subprocess.PIPE,
        pass_fds=(source,),
    )
    os.close(source)
    out, _ = process.communicate(b"by stdin\n", timeout=30)
    assert out == b"by stdin\nby descriptor\n"


def test_lines_of_interest_are_kept_with_their_kind(stage: Stage):
    lines = {
        "(EngineCore pid=97) WARNING 05-22 12:30:11 [jit_monitor.py:103] Triton kernel JIT compilation during inference: "
        "_k. This causes a latency spike; consider extending warmup": "jit",
        "(Worker_TP0 pid=1) WARNING [jit_monitor.py:9] CuteDSL kernel JIT compilation during inference: f": "jit",
        "TileLang JIT compilation during inference: mhc_pre_big_fuse": "jit",
        "Triton autotuning during inference: k": "jit",
        "(EngineCore pid=9) INFO [jit_monitor.py:73] Kernel JIT monitor activated; monitored JIT compilations during "
        "inference will use mode=warn.": "hint",
        "(EngineCore pid=9) WARNING [flashinfer.py:369] Failed to connect to NVIDIA artifactory: Max retries": "",
        "(EngineCore pid=9) ERROR [core.py:1] EngineCore failed to start.": "fatal",
        "INFO 11-29 [startup.py:96] non-default args: {'model': 'm'}": "hint",
        "INFO [cuda.py:509] Using FLASHINFER attention backend out of potential backends: [...]": "hint",
        "INFO [kv_cache_utils.py:1149] GPU KV cache size: 100,000 tokens": "hint",
        "(EngineCore) ERROR 11-29 [core.py:700] torch.OutOfMemoryError: CUDA out of memory. Tried": "fatal",
        "vllm: error: unrecognized arguments: --nope": "fatal",
        "(EngineCore) WARNING [kv_cache.py:163] Using KV cache scaling factor 1.0 for fp8_e4m3. If this is unintended": "hint",
        "[rank1]:[E ProcessGroupNCCL.cpp:629] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(Seq": "fatal",
        'INFO: 127.0.0.1:53002 - "POST /v1/chat/completions HTTP/1.1" 200 OK': "",
    }
    (stage.root / "log").write_text("\n".join(lines))
    attempt, process = stage.started(
        SHELL, "-c", f"cat {stage.root}/log; cat {stage.root}/log >&2; echo >&2", env={"PATH": "/bin:/usr/bin"}
    )
    output(process)
    found = stage.sidecar.new_lines(attempt)
    wanted = [(kind, line) for line, kind in lines.items() if kind]
    assert sorted((line.kind, line.text) for line in found) == sorted(wanted * 2)
    assert stage.sidecar.new_lines(attempt) == ()


def test_lines_are_bounded_and_a_flood_of_one_kind_leaves_room_for_the_others(stage: Stage):
    script = "for i in range(5000): print('JIT compilation during inference:', i)\nprint('ValueError: the end')"
    attempt, process = stage.started(*PYTHON, script)
    output(process)
    found: list[Line] = []
    while new := stage.sidecar.new_lines(attempt):
        found += new
    assert len(found) <= 2000
    assert found[-1].text == "ValueError: the end"


def test_last_words_are_the_last_forty_lines_and_a_progress_bar_is_one(stage: Stage):
    script = (
        "import sys\n"
        "for i in range(100): print('line', i)\n"
        "for i in range(100): sys.stdout.write('\\rLoading %d%%' % i); sys.stdout.flush()\n"
        "sys.stdout.write('\\nunfinished')"
    )
    attempt, process = stage.started(*PYTHON, script)
    output(process)
    exited = stage.sidecar.state(attempt).exited
    assert exited is not None
    assert exited.last_lines[-2:] == ("Loading 99%", "unfinished")
    assert exited.last_lines[0] == "line 62"
    assert len(exited.last_lines) == 40


def test_secrets_are_not_kept_in_lines(stage: Stage):
    attempt, process = stage.started(
        SHELL,
        "-c",
        "echo \"non-default args: {'api_key': ['$0', '$VLLM_API_KEY']}\"",
        "--api-key",
        "sk-argument",
        env={"VLLM_API_KEY": "sk-environment"},
    )
    out, _ = output(process)
    assert b"sk-environment" in out
    exited = stage.sidecar.state(attempt).exited
    assert exited is not None
    kept = " ".join([*exited.last_lines, *(line.text for line in stage.sidecar.new_lines(attempt))])
    assert "sk-" not in kept


def test_what_holds_the_pipe_open_for_ever_does_not_hold_the_launcher(stage: Stage):
    # A process out of the engine's group that nobody ends; it is this test that does. The engine goes only once the process
    # has left the group: before that it goes with the group.
    out_of_the_group = "/usr/bin/setsid /bin/sh -c 'echo $$ >worker; exec /bin/sleep 60' &"
    until_it_has_left = "until [ -s worker ]; do /bin/sleep 0.02; done; read -r pid <worker; echo $pid"
    _, process = stage.started(SHELL, "-c", f"cd '{stage.root}'; {out_of_the_group} {until_it_has_left}")
    worker = int(process.stdout.readline())
    assert process.wait(15) == 0
    os.kill(worker, 9)
