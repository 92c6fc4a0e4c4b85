"""Profiles: what traffic warms which GPU, as frozen models, and the files they are read from.

How a profile meets a given engine is decided in `planner.py`; which one is taken, in `choice.py`; what `extends`
means, in `inheritance.py`.
"""

from __future__ import annotations

import difflib
import importlib.resources
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import pydantic
from pydantic import BeforeValidator, Field

from sidecar.errors import ProfileError
from sidecar.warmup import inheritance
from sidecar.warmup.learned import Learned
from sidecar.warmup.matching import Match
from sidecar.warmup.problems import problems_of
from sidecar.warmup.search_terms import Search
from sidecar.warmup.sizes import Size
from sidecar.warmup.steps import Strict, known_version
from sidecar.warmup.task_steps import AnyStep

#: Folder of the shipped profiles inside an installed package.
PACKAGED = "_profiles"
#: Of the form of profile files. A file without `version` is of the newest.
VERSION = 1


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
    """The traffic that random draws imitate: lengths in tokens, and how many requests arrive at once.

    The spans are searched. Draws are even in their logarithm, or follow `learned` where it is given.
    """

    prompt_tokens: Span = Span.model_validate({"from": 1, "to": "max_num_batched_tokens"})
    output_tokens: Span = Span.model_validate({"from": 1, "to": 16})
    concurrency: Span = Span.model_validate({"from": 1, "to": 8})
    sampled: float = Field(0.5, ge=0, le=1)
    learned: Learned | None = None


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


class Policy(Strict):
    """What becomes of a pod that this profile could not warm, and of what an engine died of.

    `on_unwarmed` counts over WARMUP_ON_UNWARMED: `serve` (flagged) or `hold`. `killers`: `leave_out` never sends
    again in this pod what an engine died of, and nothing larger of that step; `send_again` does.
    """

    on_unwarmed: Literal["serve", "hold"] | None = None
    killers: Literal["leave_out", "send_again"] = "leave_out"


class Profile(Strict):
    """One profile, with what it extends. `name` is the file's, without its ending.

    `only_extended`: it is there for others to extend and never chosen by itself.
    """

    OTHER_KEYS: ClassVar[tuple[str, ...]] = (inheritance.EXTENDS, inheritance.WITHOUT)

    name: str = ""
    version: Annotated[Literal[1], BeforeValidator(known_version(VERSION))] = 1
    description: str = Field(min_length=1)
    only_extended: bool = False
    match: Match = Match()
    assume: Assume = Assume()
    steps: tuple[AnyStep, ...] = Field(min_length=1)
    mix: Mix = Mix()
    search: Search = Search()
    converge: Converge = Converge()
    budget: Budget = Budget()
    policy: Policy = Policy()

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
    seen: inheritance.Seen = {}
    for path in sorted(directory.glob("*.y*ml")):
        try:
            found.append(Listed(path.stem, path, load_file(path, seen)))
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


def load_file(path: Path, seen: inheritance.Seen | None = None) -> Profile:
    """Read and check one profile file with all it extends; `seen` is kept by whoever reads many.

    Raises ProfileError with a line per problem, each with its place.
    """
    found = inheritance.read_merged(path, profiles_directory(), seen)
    if not isinstance(found.value, Mapping):
        raise ProfileError(f"{found.place(())}: a profile is a mapping with `description` and `steps`.")
    try:
        return Profile.model_validate({"name": path.stem, **found.value})
    except pydantic.ValidationError as error:
        raise ProfileError("\n".join(problems_of(found, error))) from error
