"""Golden files and prompt files: what they hold, and how they are read and written.

What the numbers in them mean for an engine is decided in `judging.py`.
"""

from __future__ import annotations

import functools
import itertools
import math
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import pydantic
import yaml
from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, WithJsonSchema

from sidecar import files
from sidecar.errors import GoldenError, ProfileError
from sidecar.golden.limits import Limits
from sidecar.golden.prompts import Prompt
from sidecar.warmup import marked_yaml
from sidecar.warmup.problems import problems_of
from sidecar.warmup.steps import Strict, known_version

#: Of the form of golden files. A file without `version` is of the newest.
VERSION = 1
#: The starter set recorded is 0.12 MB. YAML of a larger file keeps the daemon busy while probes wait. Bytes; and of all files
#: of a directory together.
SIZE_LIMIT = 2 * 1024 * 1024
DIRECTORY_LIMIT = 4 * SIZE_LIMIT
#: Keys, values, and ends of lists in the YAML of one file; a recorded prompt has 24.
NODE_LIMIT = 30_000
STARTER = Path(__file__).with_name("starter.yaml")
ALLOWED = (
    f"and a golden file has at most {SIZE_LIMIT // 2**20} MiB and {NODE_LIMIT} keys and values (about 1,200 prompts); take "
    "fewer or shorter prompts, or put them into several files of one directory."
)
ENDINGS = (".yaml", ".yml", ".json")
Number = TypeVar("Number", int, float)


def _split(kind: type[Number], value: Any) -> Any:
    """Read numbers that are written as one text with spaces: a list of them would be a line for each in YAML."""
    if not isinstance(value, str):
        return value
    try:
        return tuple(kind(word) for word in value.split())
    except ValueError:
        raise ValueError("this must be numbers with spaces between them") from None


def _finite(values: tuple[float, ...]) -> tuple[float, ...]:
    """Refuse what no comparison can use: NaN differs from nothing, so that a file of it would pass anything."""
    for at, each in enumerate(values, start=1):
        if not math.isfinite(each):
            raise ValueError(f"number {at} is {each}; all must be finite: record again")
    return values


_TEXT = WithJsonSchema({"type": "string", "description": "Numbers with spaces between them."})
Ids = Annotated[
    tuple[int, ...],
    BeforeValidator(functools.partial(_split, int)),
    PlainSerializer(lambda found: " ".join(map(str, found))),
    _TEXT,
]
Numbers = Annotated[
    tuple[float, ...],
    BeforeValidator(functools.partial(_split, float)),
    AfterValidator(_finite),
    PlainSerializer(lambda found: " ".join(f"{each:.4f}" for each in found)),
    _TEXT,
]


class Answer(Strict):
    """What the trusted engine said to a prompt.

    `ids` are its tokens and `prompt_ids` those of the prompt. `logprobs` are the log-probabilities of its tokens while they
    were generated, `margins` how much less likely the next best token was, `scored` the log-probabilities when the
    answer was read back as a part of the prompt; in nats. `odd`: what is degenerate about it, which is then no fault of
    others. `met`: the prompt's `expect` was found.
    """

    text: str
    ids: Ids = ()
    prompt_ids: Ids = ()
    logprobs: Numbers = ()
    margins: Numbers = ()
    scored: Numbers = ()
    odd: str = ""
    met: bool = True


class AnsweredPrompt(Prompt):
    """A prompt with its recorded answer."""

    answer: Answer


class Recorded(Strict):
    """From which engine the answers are, as far as it was known.

    `sentence_ids` are the tokens of a fixed sentence, which tell one tokenizer from another. `noise_percent` is the drift
    that the engine showed against itself when it was asked in other ways.
    """

    at: str
    engine: str
    model: str
    root: str = ""
    by: str = ""
    kv_cache_dtype: str = ""
    quantization: str = ""
    attention_backend: str = ""
    tensor_parallel: int | None = None
    batch_invariant: bool = False
    vocab_size: int | None = None
    sentence_ids: Ids = ()
    noise_percent: float = Field(0.0, allow_inf_nan=False)


class _Prompts(Strict):
    """What files of prompts with and without answers have in common."""

    version: Annotated[Literal[1], BeforeValidator(known_version(VERSION))] = 1
    description: str = ""
    limits: Limits = Limits()
    passages: dict[str, str] = Field(default_factory=dict)

    @pydantic.model_validator(mode="after")
    def _names_fit(self) -> _Prompts:
        seen: set[str] = set()
        prompts: Sequence[Prompt] = getattr(self, "prompts", ())
        for prompt in prompts:
            if prompt.name in seen:
                raise ValueError(f"two prompts are called '{prompt.name}'; give one of them another `name`")
            if prompt.passage and prompt.passage not in self.passages:
                known = ", ".join(self.passages) or "none"
                raise ValueError(f"the prompt '{prompt.name}' names the passage '{prompt.passage}'; there are {known}")
            seen.add(prompt.name)
        return self


class PromptSet(_Prompts):
    """A file of prompts that are yet to be answered, with the limits that a recording takes over."""

    prompts: tuple[Prompt, ...] = Field(min_length=1)


class GoldenFile(_Prompts):
    """A recording: prompts with answers, where they come from, and what is allowed.

    `models` are names under which the recorded model is served; whoever serves it under another name adds that.
    `left_out` says which prompts could not be recorded, and why.
    """

    label: str = ""
    recorded: Recorded
    models: tuple[str, ...] = Field(min_length=1)
    left_out: tuple[str, ...] = ()
    prompts: tuple[AnsweredPrompt, ...] = Field(min_length=1)


@dataclass(frozen=True)
class GoldenSet:
    """All golden files of one path: one file, or those of a directory, each with the model it was recorded from."""

    path: Path
    files: tuple[GoldenFile, ...]


def load(path: Path) -> GoldenSet:
    """Read a golden file, or all `*.yaml`, `*.yml` and `*.json` of a directory. Blocks for up to seconds.

    Raises GoldenError with a line for each problem, each with file, line and column.
    """
    if not path.is_dir():
        return GoldenSet(path, (_read(path, GoldenFile),))
    found = files_of(path)
    if not found:
        raise GoldenError(f"{path} holds no golden file; make one with `warmup-sidecar golden record`.")
    sizes = sum(_size(each) for each in found)
    if sizes > DIRECTORY_LIMIT:
        raise GoldenError(
            f"{path} is too big: its {len(found)} golden files have {_mib(sizes)}, and {_mib(DIRECTORY_LIMIT)} are allowed; "
            "keep those of this model only."
        )
    return GoldenSet(path, tuple(_read(each, GoldenFile) for each in found))


def files_of(path: Path) -> list[Path]:
    """Give the golden files that `load` reads for a path, in order. Raises OSError."""
    if not path.is_dir():
        return [path]
    return sorted(each for each in path.iterdir() if each.suffix in ENDINGS and not each.name.startswith("."))


def load_prompts(path: Path) -> PromptSet:
    """Read a file of prompts without answers, or take the prompts of a golden file. Raises GoldenError as `load` does."""
    return _read(path, PromptSet)


def starter_prompts() -> PromptSet:
    """Give the shipped set: neutral prompts of many kinds, written for this project."""
    return load_prompts(STARTER)


def save(golden: GoldenSet, path: Path) -> None:
    """Write the one file of a set, whole or not at all. Raises GoldenError when it can't be written, or not be read again."""
    (file,) = golden.files
    data = golden_text(file).encode()
    if too_big := _too_big(data):
        raise GoldenError(f"The recording would be too big: {too_big}")
    try:
        files.write_durably(path, data)
    except OSError as error:
        raise GoldenError(f"{path} can't be written ({error.strerror or error}); name a folder that can be.") from error


def golden_text(file: GoldenFile) -> str:
    """Write a golden file as it is stored; what is empty or a default is left out, limits aside."""
    content = file.model_dump(mode="json", exclude_defaults=True)
    content["limits"] = file.limits.model_dump(mode="json")
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    order = ("label", "description", "recorded", "models", "left_out", "limits", "passages", "prompts")
    ordered = {"version": VERSION, **{name: content[name] for name in order if name in content}}
    return yaml.dump(ordered, Dumper=dumper, sort_keys=False, allow_unicode=True, width=110)


File = TypeVar("File", GoldenFile, PromptSet)


def _read(path: Path, kind: type[File]) -> File:
    try:
        _must_be_small(path)
        found = marked_yaml.read(path, SIZE_LIMIT, "golden file")
    except ProfileError as error:
        raise GoldenError(str(error)) from error
    if not isinstance(found.value, Mapping):
        raise GoldenError(f"{found.place(())}: a golden file is a mapping with `prompts`.")
    content = dict(found.value)
    if kind is PromptSet:
        content = _without_answers(content)
    elif "recorded" not in content and "prompts" in content:
        raise GoldenError(
            f"{path} holds prompts without answers; record these with `warmup-sidecar golden record --prompts {path}`."
        )
    try:
        return kind.model_validate(content)
    except pydantic.ValidationError as error:
        raise GoldenError("\n".join(problems_of(found, error))) from error


def _size(path: Path) -> int:
    """Give the size of a plain file in bytes, and 0 for what can't be read: its reader says more about that."""
    try:
        found = path.stat()
    except OSError:
        return 0
    return found.st_size if stat.S_ISREG(found.st_mode) else 0


def _must_be_small(path: Path) -> None:
    """Raise GoldenError for a file that is too big, before anything is made of it."""
    size = _size(path)
    if size > SIZE_LIMIT:
        raise GoldenError(f"{path} is too big: it has {_mib(size)}, {ALLOWED}")
    try:
        data = path.read_bytes() if size else b""
    except OSError:
        return
    if too_big := _too_big(data):
        raise GoldenError(f"{path} is too big: {too_big}")


def _too_big(data: bytes) -> str:
    """Say why YAML is more than a golden file may be; empty when it is not, or is no YAML.

    Goes through it event by event, where other threads get their turn: libyaml's tree is made in one go.
    """
    if len(data) > SIZE_LIMIT:
        return f"it has {_mib(len(data))}, {ALLOWED}"
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        events = sum(1 for _ in itertools.islice(yaml.parse(data, Loader=loader), NODE_LIMIT + 1))
    except (yaml.YAMLError, ValueError):
        return ""
    return f"it has more than {NODE_LIMIT} keys and values, {ALLOWED}" if events > NODE_LIMIT else ""


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"


def _without_answers(content: dict[str, Any]) -> dict[str, Any]:
    """Take what a golden file has beyond prompts away, so that it can be recorded again."""
    if "recorded" not in content:
        return content
    kept = {name: value for name, value in content.items() if name in PromptSet.model_fields}
    prompts = content.get("prompts")
    if isinstance(prompts, list):
        kept["prompts"] = [
            {name: value for name, value in each.items() if name != "answer"} if isinstance(each, dict) else each
            for each in prompts
        ]
    return kept
