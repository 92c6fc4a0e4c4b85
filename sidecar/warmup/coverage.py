"""What a warm-up covered, as a document that travels with the kernels: which bursts compiled what, and sizes visited.

Judges nothing; the next pod replays it in `replay.py` and goes on from it in `search.py`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sidecar.errors import FileUnreadable
from sidecar.files import read_json, write_json_durably
from sidecar.warmup.bursts import Ask, Burst
from sidecar.warmup.planner import Plan
from sidecar.warmup.recorded import FAMILY
from sidecar.warmup.records import burst_id

#: Number of the format; another one is foreign. Raise it when a field changes its meaning.
FORMAT = 1
#: Where the document lies in the live cache, within the family.
FILE_NAME = "coverage.json"
#: So many bursts are kept, of about 500 bytes each: more than any engine has kernels for, and below what is read back.
MATTERS_KEPT = 2000
NAMES_KEPT = 20
#: Of about 100 bytes each.
NAMES_IN_ALL = 8000
#: vLLM and OpenAI take temperatures up to 2; a document with a much higher one is none of ours.
HOTTEST = 100
#: A shape with its defaults, which the document leaves out.
USUAL = Ask(1, 1, 1)


@dataclass(frozen=True, slots=True)
class Matter:
    """A burst that compiled something, by its name (`step/burst` of the plan, or what was searched or drawn).

    `burst` is None where the document can't hold it; the plan that has the name knows it.
    """

    name: str
    burst: Burst | None
    names: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Coverage:
    """What earlier pods covered on these kernels.

    `plan`: digest of the plan it was made with. `converged`: all of it was proven. `draws`: random draws without
    evidence since the last kernel, of all pods, from the profile's `mix` or the recorded one. `sizes`: visited ones by
    scale. `matters`: what is replayed.
    """

    plan: str
    profile: str = ""
    converged: bool = False
    draws: int = 0
    sizes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    matters: tuple[Matter, ...] = ()
    mix: str = "profile"

    def may_know(self, kernel: str) -> bool:
        """Say whether an earlier pod compiled a kernel (`family/path`), or may have: of many names not all are kept."""
        full = self._names_kept()
        return any(kernel in each.names or len(each.names) >= full for each in self.matters)

    def _names_kept(self) -> int:
        return max(1, min(NAMES_KEPT, NAMES_IN_ALL // max(1, len(self.matters))))

    def to_json(self) -> dict[str, Any]:
        """Give the document; a burst without its defaults, and no digit more than needed.

        The more bursts there are, the fewer names of kernels each keeps: it has to stay below what `read_json` takes.
        """
        most = self._names_kept()
        return {
            "format": FORMAT,
            "plan": self.plan,
            "profile": self.profile,
            "converged": self.converged,
            "draws": self.draws,
            "mix": self.mix,
            "sizes": {name: list(values) for name, values in self.sizes.items()},
            "matters": [
                {"name": each.name, "burst": _burst_json(each.burst), "kernels": sorted(each.names)[:most]}
                for each in self.matters[:MATTERS_KEPT]
            ],
        }

    @classmethod
    def from_json(cls, document: Any) -> Coverage:
        """Read a document. Raises ValueError with what is wrong with it."""
        try:
            if document["format"] != FORMAT:
                raise ValueError(f"it has format {document['format']}, and this version reads {FORMAT}")
            sizes = {str(name): _sizes(values) for name, values in document["sizes"].items()}
            return cls(
                plan=_of_type(document["plan"], str),
                profile=_of_type(document["profile"], str),
                converged=_of_type(document["converged"], bool),
                draws=max(0, _of_type(document["draws"], int)),
                sizes=sizes,
                matters=tuple(_matter(each) for each in document["matters"][:MATTERS_KEPT]),
                mix=_of_type(document.get("mix", "profile"), str),
            )
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            raise ValueError(f"a part is missing or of another kind ({type(error).__name__}: {error})") from error

    def save(self, path: Path) -> None:
        """Write the document whole or not at all, its folder too. Raises OSError."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json_durably(path, self.to_json())


def load(path: Path) -> tuple[Coverage | None, str]:
    """Read the coverage that earlier pods left, or None with a sentence; empty when there is none at all."""
    try:
        return Coverage.from_json(read_json(path)), ""
    except FileNotFoundError:
        return None, ""
    except (OSError, ValueError, FileUnreadable) as error:
        why = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
        told = f"The coverage of earlier pods in {path} can't be used, so everything is tried again: {why}"
        return None, told.rstrip(".") + "."


def coverage_path(live_cache: Path) -> Path:
    """Say where the document lies below a live cache."""
    return live_cache / FAMILY / FILE_NAME


def plan_digest(plan: Plan) -> str:
    """Digest what is sent and when it is enough: coverage of another plan proves nothing for this one.

    The room of the KV cache is not among it, since a cold boot measures less than a warm one; where that
    changes a burst, the burst says so.
    """
    profile = plan.profile
    search = getattr(profile, "search", None)
    told = {
        "bursts": [(burst_id(step, burst), repr(burst)) for step in plan.steps for burst in step.bursts],
        "limits": [
            plan.limits.max_model_len,
            plan.limits.max_num_batched_tokens,
            plan.limits.max_num_seqs,
            plan.limits.vocab_size,
        ],
        "mix": profile.mix.model_dump(mode="json", by_alias=True, exclude_none=True),
        # Which mix is drawn from changes with what users send; what is covered does not.
        "search": None if search is None else search.model_dump(mode="json", exclude={"mix"}),
    }
    return hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()[:32]


def _burst_json(burst: Burst | None) -> dict[str, Any] | None:
    if burst is None or not all(_is_plain_ask(ask) for phase in burst.phases for ask in phase):
        return None
    return {
        "key": burst.key,
        "then": burst.then,
        "phases": [[_ask_json(ask) for ask in phase] for phase in burst.phases],
    }


def _ask_json(ask: Ask) -> dict[str, Any]:
    """Give the fields of a shape that differ from their defaults."""
    values = {each.name: getattr(ask, each.name) for each in dataclasses.fields(ask)}
    usual = {each.name: getattr(USUAL, each.name) for each in dataclasses.fields(ask)}
    return {
        name: value
        for name, value in values.items()
        if name in ("count", "prompt_tokens", "output_tokens") or value != usual[name]
    }


def _is_plain_ask(ask: Ask) -> bool:
    return type(ask) is Ask and _is_plain(ask.fields)


def _is_plain(value: object) -> bool:
    if isinstance(value, Mapping):
        return all(_is_plain(each) for each in value.values())
    if isinstance(value, list | tuple):
        return all(_is_plain(each) for each in value)
    return value is None or isinstance(value, str | int | float)


def _matter(value: Any) -> Matter:
    return Matter(_of_type(value["name"], str), _burst(value["burst"]), frozenset(map(str, value["kernels"])))


def _burst(value: Any) -> Burst | None:
    if value is None:
        return None
    if value["then"] not in ("after_first_token", "after_completion"):
        raise ValueError(f"a burst goes on '{value['then']}', which is unknown")
    phases = tuple(tuple(_ask(each) for each in phase) for phase in value["phases"])
    if not phases or not all(phases):
        raise ValueError("a burst holds no requests")
    return Burst(_of_type(value["key"], str), phases, value["then"])


def _ask(value: Mapping[str, Any]) -> Ask:
    given = dict(value)
    if given.get("messages") is not None:
        given["messages"] = tuple(
            {_of_type(name, str): _of_type(said, str) for name, said in each.items()} for each in given["messages"]
        )
    fields, stream, text = given.get("fields", {}), given.get("stream", True), given.get("text")
    if not isinstance(fields, Mapping) or type(stream) is not bool or not (text is None or type(text) is str):
        raise ValueError("a burst holds fields or a text that are none")
    ask = Ask(**given)
    numbers = (ask.count, ask.prompt_tokens, ask.output_tokens)
    if not all(type(each) is int and 1 <= each <= 1 << 30 for each in numbers):
        raise ValueError("a burst holds a size that is none")
    if type(ask.prefix_tokens) is not int or not 0 <= ask.prefix_tokens <= ask.prompt_tokens:
        raise ValueError("a burst holds a prefix longer than its prompt")
    if not (type(ask.temperature) in (int, float) and 0 <= ask.temperature <= HOTTEST):
        raise ValueError("a burst holds a temperature that is none")
    return ask


def _sizes(values: Iterable[Any]) -> tuple[int, ...]:
    return tuple(sorted({_of_type(each, int) for each in values}))


def _of_type(value: Any, kind: type[Any]) -> Any:
    if type(value) is not kind:
        raise ValueError(f"{value!r} is not of the kind that belongs there")
    return value
