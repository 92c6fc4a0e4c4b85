"""The folder in which NVIDIA's AIConfigurator leaves its plan of a deployment: which configuration, for what traffic.

What becomes of it is written in `planned_profile.py`. Read against AIConfigurator 0.12.0 (aiconfigurator/cli/
report_and_save.py, `save_results`).
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sidecar.errors import ProfileError
from sidecar.gpu.sm import from_product
from sidecar.warmup import marked_yaml
from sidecar.warmup.planned_limits import DEPLOYED, Sourced, limits_of_folder

#: Its backends, which are called the same here.
BACKENDS = ("vllm", "sglang", "trtllm")
KNOWN = "AIConfigurator 0.12"
ASKED, BEST = "exp_config.yaml", "best_config_topn.csv"
#: Kinds of engines by serving mode, and what the columns of each begin with.
_ROLES: Mapping[str, tuple[str, ...]] = {"agg": ("",), "disagg": ("prefill", "decode")}
_PREFIX = {"": "", "prefill": "(p)", "decode": "(d)"}
_PREDICTED = {
    "ttft_ms": "ttft",
    "tpot_ms": "tpot",
    "request_latency_ms": "request_latency",
    "output_tokens_per_s": "tokens/s",
}
#: Its names of systems that say less than the name of the product (aiconfigurator_core/systems).
_SYSTEMS = {"rtx_pro_6000_server": "sm120"}
#: The largest number that any of its columns holds.
LARGEST = 1e9


@dataclass(frozen=True)
class Planned:
    """One configuration of a result, for one role: what AIConfigurator was asked for, and what it found.

    Times in milliseconds. `targets` are what was asked for, `predicted` what this configuration is said to reach.
    `concurrency` is of one replica, `batch` of one engine. `beside` are requests that generate while one prompt is read.
    `where` names the row that it is all from; `limits` are the engine's, each with where it stands. `dynamo`: it generated workers
    of Dynamo.
    """

    result: str
    experiment: str
    rank: int
    role: str
    model: str
    system: str
    backend: str
    version: str
    prompt_tokens: int
    output_tokens: int
    prefix_tokens: int
    concurrency: int
    batch: int
    beside: int
    kv_cache: str
    weights: str
    gpus: int
    targets: Mapping[str, float]
    predicted: Mapping[str, float]
    limits: Mapping[str, Sourced] = field(default_factory=dict)
    dynamo: bool = False

    @property
    def where(self) -> str:
        """Name the row of this configuration."""
        return f"{self.experiment}/{BEST}, row {self.rank}"

    @property
    def asked_in(self) -> str:
        """Name the file of what was asked for."""
        return f"{self.experiment}/{ASKED}"

    @property
    def sm(self) -> str | None:
        """Tell the SM version from its name of the system; None where it tells none."""
        return _SYSTEMS.get(self.system) or from_product(self.system.replace("_", " ").upper())


def read_plan(folder: Path, experiment: str = "", rank: int = 1, role: str = "") -> Planned:
    """Read one configuration; without `experiment` that of the best one, by tokens per second and GPU.

    Raises ProfileError that names the file which is missing or wrong, and what to do.
    """
    folder = _result(folder)
    name, values = _chosen(folder, experiment, rank)
    path = folder / name / BEST
    asked, asked_path = _asked(folder / name, values)
    mode = _word(asked, "serving_mode", asked_path)
    row = _Row(values, _PREFIX[_role(mode, role, name, asked_path)], path)
    backend = row.text("backend", own=True)
    if backend not in BACKENDS:
        raise ProfileError(f"{path}: backend '{backend}' is none that can be warmed; known are {', '.join(BACKENDS)}.")
    top = folder / name / f"top{rank}"
    return Planned(
        result=folder.name,
        experiment=name,
        rank=rank,
        role=role,
        model=row.text("model"),
        system=row.text("system", own=True),
        backend=backend,
        version=row.text("version", own=True),
        prompt_tokens=row.count("isl"),
        output_tokens=row.count("osl"),
        prefix_tokens=row.count("prefix", least=0),
        concurrency=row.count("concurrency"),
        batch=row.count("bs", own=True),
        beside=row.count("num_gen_reqs", least=0) if mode == "agg" else 0,
        kv_cache=row.text("kvcache", own=True),
        weights=row.text("gemm", own=True),
        gpus=row.count("num_total_gpus"),
        targets=_targets(asked, asked_path),
        predicted={ours: row.number(theirs) for ours, theirs in _PREDICTED.items()},
        limits=limits_of_folder(top, backend, role),
        dynamo=(top / DEPLOYED).is_file(),
    )


@dataclass(frozen=True)
class _Row:
    """One row of a table. `own` columns are those of one kind of engine, whose names begin with `prefix`."""

    values: Mapping[str, str]
    prefix: str
    path: Path

    def text(self, column: str, *, own: bool = False) -> str:
        column = self.prefix + column if own else column
        value = " ".join((self.values.get(column) or "").split())
        if not value:
            raise ProfileError(
                f"{self.path} has no `{column}`; {KNOWN} writes it. Let that version plan again, or name another "
                "--experiment."
            )
        return value

    def number(self, column: str) -> float:
        return _checked(self.text(column), column, self.path)

    def count(self, column: str, *, own: bool = False, least: int = 1) -> int:
        text = self.text(column, own=own)
        try:
            found = float(text)
        except ValueError:
            found = math.nan
        if not least <= found <= LARGEST or found != int(found):
            raise ProfileError(f"{self.path}: `{column}` is '{text}' and not a whole number from {least} on.")
        return int(found)


def _result(folder: Path) -> Path:
    """Find the folder of the result: this one, the one above an experiment, or the only one below."""
    if not folder.is_dir():
        raise ProfileError(
            f"{folder} is no folder; give the one that `aiconfigurator cli default … --save-dir` made, which holds agg "
            "or disagg."
        )
    if (folder / ASKED).is_file() and (folder / BEST).is_file():
        return folder.resolve().parent
    if any((each / BEST).is_file() or any(each.glob(f"*{ASKED}")) for each in folder.iterdir() if each.is_dir()):
        return folder
    below = sorted({path.parent.parent for depth in ("*/*", "*/*/*") for path in folder.glob(f"{depth}/{BEST}")})
    if len(below) == 1:
        return below[0]
    if below:
        raise ProfileError(f"{folder} holds several results; give one of them: {', '.join(map(str, below))}.")
    raise ProfileError(
        f"{folder} holds no result of AIConfigurator: {ASKED} and {BEST} are missing in every folder of it. Give the "
        "folder that `aiconfigurator cli default … --save-dir` made; if its run was cut short, let it run again."
    )


def _experiments(folder: Path) -> dict[str, list[dict[str, str]]]:
    """Read the configurations of all experiments that found some. Raises ProfileError for one that is half written."""
    found, empty = {}, []
    for each in sorted(folder.iterdir()):
        if not each.is_dir() or not ((each / BEST).exists() or any(each.glob(f"*{ASKED}"))):
            continue
        if not (each / BEST).is_file():
            raise ProfileError(_missing(each / BEST))
        rows = _rows(each / BEST)
        if rows:
            found[each.name] = rows
        else:
            empty.append(each.name)
    if not found:
        raise ProfileError(
            f"AIConfigurator found no configuration in {' and '.join(empty)} of {folder}: {BEST} is empty there. Ask it "
            "for more GPUs or for slower targets (--ttft, --tpot)."
        )
    return found


def _chosen(folder: Path, experiment: str, rank: int) -> tuple[str, dict[str, str]]:
    """Give the name of the experiment and the row of the configuration. Raises ProfileError where there is none such."""
    found = _experiments(folder)
    if experiment and experiment not in found:
        raise ProfileError(f"{folder} has no experiment '{experiment}'; there is {' and '.join(sorted(found))}.")
    name = experiment or max(sorted(found), key=lambda each: _speed(found[each][0]))
    if not 1 <= rank <= len(found[name]):
        many = len(found[name])
        raise ProfileError(f"{folder / name / BEST} has {many} configurations, and no number {rank}; see --rank.")
    return name, found[name][rank - 1]


def _rows(path: Path) -> list[dict[str, str]]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ProfileError(f"{path} can't be read ({getattr(error, 'strerror', None) or error}).") from error
    # A line that was cut off has fewer values than there are columns, which the reader gives as None.
    rows = [dict(row) for row in csv.DictReader(io.StringIO(text)) if any(row.values())]
    for number, row in enumerate(rows, start=1):
        if None in row.values() or None in row:
            raise ProfileError(f"{path} is cut short in row {number}; let AIConfigurator run again with --save-dir.")
    return rows


def _asked(folder: Path, row: Mapping[str, str]) -> tuple[Mapping[str, Any], Path]:
    """Read what an experiment was asked for: one file, or one for each backend where all were compared."""
    backend = row.get("backend") or row.get("(d)backend") or ""
    path = next((each for each in (folder / ASKED, folder / f"{backend}_{ASKED}") if each.is_file()), None)
    if path is None:
        raise ProfileError(_missing(folder / ASKED))
    value = marked_yaml.read(path, noun="file of AIConfigurator").value
    wanted = ("serving_mode", "isl", "osl", "ttft", "tpot")
    missing = [name for name in wanted if not isinstance(value, Mapping) or name not in value]
    if missing:
        raise ProfileError(
            f"{path} has no {' and no '.join(f'`{name}`' for name in missing)}: it is cut short, or of another version "
            f"than {KNOWN}, which is what this program knows. Let that version plan again."
        )
    return value, path


def _targets(asked: Mapping[str, Any], path: Path) -> dict[str, float]:
    """Give what was asked for; a limit of the whole request stands for the two others then."""
    names = {"request_latency": "request_latency_ms"} if asked.get("request_latency") else {}
    names = names or {"ttft": "ttft_ms", "tpot": "tpot_ms"}
    return {ours: _checked(asked[theirs], theirs, path) for theirs, ours in names.items()}


def _role(mode: str, role: str, experiment: str, path: Path) -> str:
    roles = _ROLES.get(mode)
    if roles is None:
        raise ProfileError(
            f"{path}: serving mode '{mode}' has no engine that could be warmed by itself; known are agg and disagg."
        )
    if role in roles:
        return role
    if role:
        raise ProfileError(f"{experiment} has one kind of engine, for both prompts and output; leave --role out.")
    if len(roles) > 1:
        raise ProfileError(
            f"{experiment} has engines that read prompts and others that generate, each with a profile of its own: add "
            "--role prefill or --role decode; or --experiment agg."
        )
    return roles[0]


def _speed(row: Mapping[str, str]) -> float:
    try:
        return float(row.get("tokens/s/gpu_cluster") or row.get("tokens/s/gpu") or 0.0)
    except ValueError:
        return 0.0


def _word(values: Mapping[str, Any], name: str, path: Path) -> str:
    value = values[name]
    if not isinstance(value, str):
        raise ProfileError(f"{path}: `{name}` is {value!r} and not a word.")
    return value


def _checked(value: Any, name: str, path: Path) -> float:
    try:
        found = float(value)
    except (TypeError, ValueError):
        found = math.nan
    if isinstance(value, bool) or not 0 < found <= LARGEST:
        raise ProfileError(f"{path}: `{name}` is {value!r} and not a number above 0.")
    return found


def _missing(path: Path) -> str:
    return (
        f"{path} is missing, so this result is not whole. If AIConfigurator was stopped, let it run again with --save-dir; "
        f"if not, it is of another version than {KNOWN}, which is what this program knows."
    )
