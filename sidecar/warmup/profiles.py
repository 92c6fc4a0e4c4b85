"""Profiles: what traffic warms which GPU, as frozen models, and the files they are read from.

How a profile meets a given engine is decided in `planner.py`; which one is taken, in `choice.py`.
"""

from __future__ import annotations

import difflib
import importlib.resources
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pydantic
from pydantic import Field

from sidecar.errors import ProfileError
from sidecar.warmup import marked_yaml
from sidecar.warmup.sizes import Size
from sidecar.warmup.steps import UNKNOWN_KEY, AnyStep, Strict

#: Folder of the shipped profiles inside an installed package.
PACKAGED = "_profiles"
SmName = Annotated[str, Field(pattern=r"^(cpu|sm\d{2,3})$")]


class Match(Strict):
    """What a profile is for. An empty list means: any."""

    sm: tuple[SmName, ...] = ()
    engine: tuple[str, ...] = ()
    kv_cache_dtype: tuple[str, ...] = ()
    quantization: tuple[str, ...] = ()


class Assume(Strict):
    """Limits taken for granted where the engine doesn't tell them, in tokens and sequences."""

    max_model_len: int = Field(2048, ge=16)
    max_num_batched_tokens: int = Field(2048, ge=16)
    max_num_seqs: int = Field(128, ge=1)
    vocab_size: int = Field(2048, ge=64)


class Span(Strict):
    """From one size to another; draws are even in the logarithm, as request lengths roughly are."""

    start: Size = Field(alias="from")
    to: Size


class Mix(Strict):
    """The traffic that random draws imitate: lengths in tokens, and how many requests arrive at once."""

    prompt_tokens: Span = Span.model_validate({"from": 1, "to": "max_num_batched_tokens"})
    output_tokens: Span = Span.model_validate({"from": 1, "to": 16})
    concurrency: Span = Span.model_validate({"from": 1, "to": 8})
    sampled: float = Field(0.5, ge=0, le=1)


class Converge(Strict):
    """When a warm-up is done.

    `clean_rounds` whole rounds without a new kernel, then `random_draws` draws from the mix in a row without
    one. A burst is flat when it is within `tolerance` times its best, or within `floor_s` seconds of it,
    whichever is more.
    """

    clean_rounds: int = Field(1, ge=1, le=20)
    tolerance: float = Field(1.5, ge=1, le=100)
    floor_s: float = Field(0.05, ge=0, le=60)
    max_rounds: int = Field(10, ge=1, le=1000)
    random_draws: int = Field(30, ge=0, le=100_000)


class Budget(Strict):
    """`seconds`: cap of a warm-up with this profile, below the one from the settings."""

    seconds: float | None = Field(None, gt=0)


class Profile(Strict):
    """One profile. `name` is the file's, without its ending."""

    name: str = ""
    description: str = Field(min_length=1)
    match: Match = Match()
    assume: Assume = Assume()
    steps: tuple[AnyStep, ...] = Field(min_length=1)
    mix: Mix = Mix()
    converge: Converge = Converge()
    budget: Budget = Budget()

    @pydantic.model_validator(mode="after")
    def _names_differ(self) -> Profile:
        seen: set[str] = set()
        for step in self.steps:
            if step.title in seen:
                raise ValueError(f"two steps are called '{step.title}'; give one of them another `name`")
            seen.add(step.title)
        return self


@dataclass(frozen=True)
class Listed:
    """One profile file of a directory: the profile, or in `problem` what is wrong with it."""

    name: str
    path: Path
    profile: Profile | None
    problem: str = ""


def profiles_directory() -> Path:
    """Find the shipped profiles: `sidecar/_profiles` in a package, else `warmup_profiles` of the checkout.

    Raises ProfileError when the installation has neither.
    """
    package = Path(str(importlib.resources.files("sidecar")))
    for candidate in (package / PACKAGED, package.parent / "warmup_profiles"):
        if candidate.is_dir():
            return candidate
    raise ProfileError(
        f"The shipped profiles are missing from {package}; install the package again, or set "
        "WARMUP_PROFILE to the path of a profile."
    )


def list_profiles(directory: Path | None = None) -> tuple[Listed, ...]:
    """List the profiles of a directory by name, broken ones with what is wrong. Default: the shipped ones."""
    directory = directory or profiles_directory()
    found = []
    for path in sorted(directory.glob("*.y*ml")):
        try:
            found.append(Listed(path.stem, path, load_file(path)))
        except ProfileError as error:
            found.append(Listed(path.stem, path, None, str(error)))
    return tuple(found)


def load_profile(name_or_path: str, directory: Path | None = None) -> Profile:
    """Load a profile by its name in `directory` (default: the shipped ones) or by its path.

    Raises ProfileError that names file, line and column of everything that is wrong.
    """
    if "/" in name_or_path or name_or_path.endswith((".yaml", ".yml")):
        return load_file(Path(name_or_path))
    directory = directory or profiles_directory()
    path = directory / f"{name_or_path}.yaml"
    if not os.path.isfile(path):
        known = sorted(each.stem for each in directory.glob("*.yaml"))
        close = difflib.get_close_matches(name_or_path, known, n=1)
        hint = f" Did you mean {close[0]}?" if close else ""
        raise ProfileError(
            f"There is no profile '{name_or_path}' in {directory}; there are {', '.join(known) or 'none'}."
            f"{hint} A path to a file works too."
        )
    return load_file(path)


def load_file(path: Path) -> Profile:
    """Read and check one profile file. Raises ProfileError with a line per problem, each with its place."""
    found = marked_yaml.read(path)
    if not isinstance(found.value, Mapping):
        raise ProfileError(f"{found.place(())}: a profile is a mapping with `description` and `steps`.")
    try:
        return Profile.model_validate({"name": path.stem, **found.value})
    except pydantic.ValidationError as error:
        raise ProfileError("\n".join(_sentence(found, each) for each in _causes(error.errors()))) from error


def _causes(errors: Sequence[Any]) -> list[Any]:
    """Leave out lists that are too short only because of what was wrong with their items."""
    places = [tuple(each["loc"]) for each in errors]
    return [
        each
        for each in errors
        if each["type"] != "too_short"
        or not any(
            len(place) > len(each["loc"]) and place[: len(each["loc"])] == tuple(each["loc"]) for place in places
        )
    ]


def _sentence(found: marked_yaml.MarkedYaml, error: Any) -> str:
    location = tuple(error["loc"])
    context: Mapping[str, Any] = error.get("ctx") or {}
    kind, message = error["type"], str(error["msg"]).removeprefix("Value error, ")
    if kind == UNKNOWN_KEY:
        location += (context["key"],)
    elif kind == "union_tag_invalid":
        expected = [each.strip(" '") for each in str(context["expected_tags"]).split(",")]
        close = difflib.get_close_matches(str(context["tag"]), expected, n=1)
        hint = f"did you mean {close[0]}?" if close else "there are " + ", ".join(expected)
        message = f"'{context['tag']}' is not a kind of step; {hint}"
        location += ("kind",)
    elif kind == "union_tag_not_found":
        message = "a step needs a `kind`, such as `kind: prefill`"
    elif kind == "missing":
        message = f"`{location[-1]}` is missing"
    elif kind == "literal_error":
        given, expected = error["input"], context["expected"]
        message = f"{given!r} is not one of {expected}{_close(given, expected)}"
    return f"{found.place(location)}: {_field(location)}{message}{'' if message.endswith(('.', '?')) else '.'}"


def _close(given: object, expected: object) -> str:
    options = [each.strip(" '") for each in str(expected).replace(" or ", ",").split(",")]
    close = difflib.get_close_matches(str(given), options, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _field(location: tuple[int | str, ...]) -> str:
    """Name the innermost field of a location; step kinds and tags in it are no fields."""
    names = [part for part in location if isinstance(part, str) and part not in ("size", "sweep", "kind")]
    return f"{names[-1]}: " if names else ""
