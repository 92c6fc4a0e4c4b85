"""Play live traffic against a running engine and tell who waited, and for which newly compiled kernels.

Nothing of the product is imported here: what traffic sees must not be measured with the code on trial.

    python tests/bench/live_probe.py --cases baseline --cache-dir /var/cache/engine --json out.json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

#: A request that takes longer than this failed; the slowest compile stall seen on an H200 was 25 s.
REQUEST_DEADLINE_S = 180.0

#: Output tokens of one request, enough to see decode steps of a whole batch.
OUTPUT_TOKENS = 16

#: Files that hold machine code: CUDA (.cubin), nvcc and C++ builds (.so). Others count as files only.
KERNEL_SUFFIXES = (".cubin", ".so")

#: Directories of locks and half-written files; what lies there says nothing about compilers.
PASSING_DIRECTORIES = frozenset({"locks", "tmp", ".staging", ".trash"})

#: Where text of a chat answer may stand (vLLM: `reasoning`, before 0.12 `reasoning_content`).
CHANNELS = ("content", "reasoning", "reasoning_content", "tool_calls")

SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}, "count": {"type": "integer"}}}
STRUCTURED: Mapping[str, Any] = {
    "response_format": {"type": "json_schema", "json_schema": {"name": "probe", "schema": SCHEMA}}
}
SAMPLED = {"temperature": 0.7, "top_p": 0.9, "top_k": 40}
PENALTIES = {"temperature": 0.7, "presence_penalty": 0.5, "frequency_penalty": 0.5, "repetition_penalty": 1.1}


@dataclass(frozen=True)
class Case:
    """One traffic shape: `concurrency` requests at once, of `shared` common and `tokens` own tokens."""

    name: str
    tokens: int
    concurrency: int = 1
    shared: int = 0
    chat: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class CaseSet:
    """Cases in the order in which they are played, and what suits the model they are made for, in tokens."""

    cases: tuple[Case, ...]
    highest_token: int
    random_longest: int
    random_concurrency: tuple[int, ...]


FEATURES = (
    Case("sampled", 64, extra=SAMPLED),
    Case("penalties", 64, extra=PENALTIES),
    Case("logprobs", 64, extra={"logprobs": 5}),
    Case("structured", 32, chat=True, extra=STRUCTURED),
)

CASE_SETS: Mapping[str, CaseSet] = {
    "baseline": CaseSet(
        (
            *(Case(f"single {n}", n) for n in (16, 512, 2048, 8192, 30000)),
            *FEATURES,
            *(Case(f"{c} x {n}", n, c) for c, n in ((2, 512), (32, 512), (128, 256), (256, 128))),
            Case("16 x shared 8k prefix", 64, 16, shared=8192),
        ),
        highest_token=150_000,
        random_longest=8192,
        random_concurrency=(1, 2, 4, 8, 16),
    ),
    "cpu": CaseSet(
        (
            *(Case(f"single {n}", n) for n in (16, 128, 512, 2048)),
            *FEATURES,
            Case("4 x 128", 128, 4),
            Case("4 x shared 512 prefix", 64, 4, shared=512),
        ),
        highest_token=4000,
        random_longest=1024,
        random_concurrency=(1, 2, 4),
    ),
}


@dataclass(frozen=True)
class Answer:
    """What one request saw, in seconds; `first_s` is the first non-empty text, None when there was none."""

    first_s: float | None
    gap_s: float
    total_s: float
    error: str = ""


def cache_files(root: Path | None) -> dict[str, tuple[int, int]]:
    """Map each file of the live cache to mtime (ns) and size (bytes), but for locks and temporary files."""
    found: dict[str, tuple[int, int]] = {}
    if root is None:
        return found
    for folder, folders, names in os.walk(root):
        kept = (name for name in folders if name not in PASSING_DIRECTORIES)
        folders[:] = [name for name in kept if not name.startswith("tmp.")]
        for name in names:
            if name.endswith((".lock", ".tmp", ".log")):
                continue
            path = Path(folder, name)
            try:
                stat = path.lstat()
            except FileNotFoundError:
                continue
            found[str(path.relative_to(root))] = (stat.st_mtime_ns, stat.st_size)
    return found


def new_files(before: Mapping[str, tuple[int, int]], after: Mapping[str, tuple[int, int]]) -> dict[str, Any]:
    """Tell what was written between two looks: `files`, `kernels` per family, `names` (at most 40)."""
    names = sorted(name for name, stamp in after.items() if before.get(name) != stamp)
    kernels = Counter(name.split("/", 1)[0] for name in names if name.endswith(KERNEL_SUFFIXES))
    return {"files": len(names), "kernels": dict(kernels), "names": names[:40]}


def has_text(message: Mapping[str, Any]) -> bool:
    """Say whether a streamed message carries text in any channel, reasoning and tool calls included."""
    for choice in message.get("choices") or ():
        delta = choice.get("delta") or {}
        if choice.get("text") or any(delta.get(channel) for channel in CHANNELS):
            return True
    return False


async def ask(session: aiohttp.ClientSession, path: str, body: Mapping[str, Any]) -> Answer:
    """Send one streamed request and time its text; what goes wrong becomes the answer's `error`."""
    start = last = time.perf_counter()
    first: float | None = None
    gap = 0.0
    error = ""
    try:
        async with session.post(path, json=body) as response:
            if response.status != 200:
                error = f"HTTP {response.status}: {(await response.text(errors='replace'))[:200]}"
            while not error and (line := await response.content.readline()):
                if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                    continue
                message = json.loads(line[6:])
                if message.get("error"):
                    error = f"error in the stream: {str(message['error'])[:200]}"
                elif has_text(message):
                    now = time.perf_counter()
                    gap, first = (gap, now - start) if first is None else (max(gap, now - last), first)
                    last = now
    except (aiohttp.ClientError, TimeoutError, ValueError) as failure:
        error = f"{type(failure).__name__}: {failure}"
    if first is None and not error:
        error = "no text in the answer"
    return Answer(first, gap, time.perf_counter() - start, error)


@dataclass
class Probe:
    """Play the cases of one set against one engine; `longest` is the engine's max_model_len in tokens."""

    session: aiohttp.ClientSession
    model: str
    longest: int
    case_set: CaseSet
    cache: Path | None
    rng: random.Random
    prefixes: dict[str, list[int]] = field(default_factory=dict)

    def _tokens(self, count: int) -> list[int]:
        return [self.rng.randrange(300, self.case_set.highest_token) for _ in range(count)]

    def _request(self, case: Case) -> tuple[str, dict[str, Any]]:
        body: dict[str, Any] = {"model": self.model, "max_tokens": OUTPUT_TOKENS, "temperature": 0}
        body.update(case.extra, stream=True)
        if case.chat:
            question = f"Name and count of item {self.rng.random()}, as JSON."
            return "/v1/chat/completions", {**body, "messages": [{"role": "user", "content": question}]}
        shared = self.prefixes.setdefault(case.name, self._tokens(case.shared))
        return "/v1/completions", {**body, "ignore_eos": True, "prompt": shared + self._tokens(case.tokens)}

    async def once(self, case: Case) -> dict[str, Any]:
        """Play one repetition; give TTFT, longest gap and total (seconds), errors, and what was compiled."""
        requests = [self._request(case) for _ in range(case.concurrency)]
        before = cache_files(self.cache)
        answers = await asyncio.gather(*(ask(self.session, path, body) for path, body in requests))
        firsts = [answer.first_s for answer in answers if answer.first_s is not None]
        return {
            "ttft_worst_s": round(max(firsts), 4) if firsts else None,
            "ttft_median_s": round(statistics.median(firsts), 4) if firsts else None,
            "gap_worst_s": round(max(answer.gap_s for answer in answers), 4),
            "total_s": round(max(answer.total_s for answer in answers), 4),
            "errors": sorted({answer.error for answer in answers if answer.error}),
            "new": new_files(before, cache_files(self.cache)),
        }

    async def play(self, repetitions: int) -> list[dict[str, Any]]:
        """Play every case `repetitions` times, a line each; what is too long for the model is skipped."""
        results: list[dict[str, Any]] = []
        for case in self.case_set.cases:
            if case.shared + case.tokens + OUTPUT_TOKENS > self.longest:
                print(f"{case.name:24} skipped: more than the model's {self.longest} tokens", flush=True)
                continue
            rows = [await self.once(case) for _ in range(repetitions)]
            results.append({"case": case.name, "repetitions": rows})
            print(line_of(case.name, rows), flush=True)
        return results

    async def play_random(self, count: int) -> dict[str, Any]:
        """Send `count` requests of random length (log-uniform), batch and features; give TTFT in seconds."""
        longest = min(self.case_set.random_longest, self.longest - OUTPUT_TOKENS)
        rows: list[dict[str, Any]] = []
        left = count
        while left > 0:
            size = min(left, self.rng.choice(self.case_set.random_concurrency))
            tokens = round(longest ** self.rng.random())
            extra = self.rng.choice(({}, {}, SAMPLED, PENALTIES, {"logprobs": 5}))
            case = Case(f"{size} x {tokens}", tokens, size, extra=extra)
            rows.append({"case": case.name, **await self.once(case)})
            left -= size
        return summary_of(count, rows)


def summary_of(count: int, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Sum up waves of random requests: percentiles of a wave's worst TTFT (seconds), errors, compiles."""
    worst = sorted(row["ttft_worst_s"] for row in rows if row["ttft_worst_s"] is not None)
    compiling = [row for row in rows if row["new"]["kernels"]]
    errors = sorted({error for row in rows for error in row["errors"]})
    p50, p99, last = (worst[(len(worst) - 1) * rank // 100] if worst else None for rank in (50, 99, 100))
    print(
        f"{count} random requests in {len(rows)} waves: TTFT p50 {p50} s, p99 {p99} s, worst {last} s; "
        f"{len(compiling)} waves compiled; errors: {errors[:3] or 'none'}",
        flush=True,
    )
    slowest = sorted(rows, key=lambda row: row["ttft_worst_s"] or 0.0)[-5:]
    return {
        "requests": count,
        "waves": len(rows),
        "ttft_p50_s": p50,
        "ttft_p99_s": p99,
        "ttft_worst_s": last,
        "errors": errors,
        "compiling": compiling,
        "slowest": slowest,
    }


def line_of(name: str, rows: list[dict[str, Any]]) -> str:
    """Say one case in a line: worst TTFT of each repetition in seconds, kernels compiled, first error."""
    worst = (row["ttft_worst_s"] for row in rows)
    times = "  ".join("     -" if seconds is None else f"{seconds:6.3f}" for seconds in worst)
    kernels = sum(sum(row["new"]["kernels"].values()) for row in rows)
    error = next((error for row in rows for error in row["errors"]), "")
    return f"{name:24} {times}   kernels {kernels}{'   ' + error[:120] if error else ''}"


async def run(options: argparse.Namespace) -> dict[str, Any]:
    """Ask the engine for its model and limits, play the cases and the random requests, give all as JSON."""
    case_set = CASE_SETS[options.cases]
    timeout, connector = aiohttp.ClientTimeout(total=REQUEST_DEADLINE_S), aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(options.url, timeout=timeout, connector=connector) as session:
        async with session.get("/v1/models", raise_for_status=True) as response:
            card = (await response.json())["data"][0]
        model, longest = options.model or card["id"], card.get("max_model_len") or 2048
        probe = Probe(session, model, longest, case_set, options.cache_dir, random.Random(options.seed))
        before = await asyncio.to_thread(cache_files, options.cache_dir)
        cases = await probe.play(options.repetitions)
        drawn = await probe.play_random(options.random) if options.random else None
        after = await asyncio.to_thread(cache_files, options.cache_dir)
    new = new_files(before, after)
    print(f"this traffic compiled: kernels {new['kernels'] or 'none'}, {new['files']} new files", flush=True)
    return {"model": model, "seed": options.seed, "cases": cases, "random": drawn, "new": new}


def main() -> None:
    """Read the command line, run the probe, and write its result when asked to."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="where the engine answers")
    parser.add_argument("--model", default="", help="served model name; default: the first listed")
    parser.add_argument("--cases", choices=sorted(CASE_SETS), default="baseline", help="traffic shapes")
    parser.add_argument("--repetitions", type=int, default=3, help="how often each case is played in a row")
    parser.add_argument("--random", type=int, default=200, help="how many random requests follow; 0: none")
    parser.add_argument("--seed", type=int, default=1, help="another seed gives other prompts")
    parser.add_argument("--cache-dir", type=Path, help="live cache to look for new kernels in")
    parser.add_argument("--json", type=Path, help="file for the whole result")
    options = parser.parse_args()
    result = asyncio.run(run(options))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
