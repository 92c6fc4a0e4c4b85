"""Which engine a recording is of: its model, its tokenizer, and its configuration.

Pure. A recording of something else is refused, which is no fault of the engine that was asked.
"""

from __future__ import annotations

from pathlib import PurePosixPath

from sidecar.engines.protocol import EngineFacts
from sidecar.errors import GoldenError
from sidecar.golden.files import GoldenFile, Recorded
from sidecar.golden.limits import Limits

#: Fields of both that make a configuration, and what they are called in sentences.
CONFIGURATION = {
    "kv_cache_dtype": "KV cache",
    "quantization": "quantization",
    "attention_backend": "attention backend",
    "tensor_parallel": "tensor parallel size",
}

#: What engines that tell their quantisation say where there is none.
UNQUANTIZED = "none"


def recorded_of(facts: EngineFacts, at: str, by: str, sentence_ids: tuple[int, ...]) -> Recorded:
    """Write down from which engine a recording is, as far as that is known."""
    return Recorded(
        at=at,
        engine=f"{facts.engine} {facts.version or ''}".strip(),
        model=facts.model,
        root=facts.root or "",
        by=by,
        kv_cache_dtype=facts.kv_cache_dtype or "",
        quantization=facts.quantization or "",
        attention_backend=facts.attention_backend or "",
        tensor_parallel=facts.tensor_parallel,
        batch_invariant=bool(facts.batch_invariant),
        vocab_size=facts.vocab_size,
        sentence_ids=sentence_ids,
    )


def names_of(facts: EngineFacts) -> tuple[str, ...]:
    """Give the names under which an engine's model is known: as it is served, and where it comes from."""
    return tuple(dict.fromkeys(name for name in (facts.model, facts.root) if name))


def same_model(file: GoldenFile, facts: EngineFacts) -> bool:
    """Say whether a recording is of the model that an engine serves, by its names."""
    return not set(file.models).isdisjoint(names_of(facts))


def must_be_same_tokenizer(file: GoldenFile, sentence_ids: tuple[int, ...]) -> None:
    """Raise GoldenError when the engine reads a fixed sentence as other tokens than the recorded one did."""
    recorded = file.recorded.sentence_ids
    if recorded and sentence_ids and recorded != sentence_ids:
        raise GoldenError(
            f"the engine's tokenizer is not the recorded one (a fixed sentence has {len(sentence_ids)} tokens, it had "
            f"{len(recorded)}, or others); it is another model under the same name: record again."
        )


def _another_root(recorded: Recorded, facts: EngineFacts) -> bool:
    """Compare where models come from by the last name: where a folder is mounted says nothing of what is in it."""
    return len({PurePosixPath(root).name for root in (recorded.root, facts.root) if root}) > 1


def exact(recorded: Recorded, facts: EngineFacts) -> bool:
    """Say whether both engines promise the same tokens in any batch, in the same configuration."""
    return recorded.batch_invariant and bool(facts.batch_invariant) and same_configuration(recorded, facts)


def same_configuration(recorded: Recorded, facts: EngineFacts) -> bool:
    """Say whether the engine and its configuration are those recorded, as far as both are known."""
    engine = f"{facts.engine} {facts.version or ''}".strip()
    known = bool(facts.version and facts.kv_cache_dtype and recorded.kv_cache_dtype)
    return known and engine == recorded.engine and _same_weights(recorded, facts) and not _different(recorded, facts)


def _same_weights(recorded: Recorded, facts: EngineFacts) -> bool:
    """Say whether nothing tells of another checkpoint, or of a quantisation that one of both engines does not show."""
    schemes = {recorded.quantization, facts.quantization or ""}
    return not _another_root(recorded, facts) and (len(schemes) == 1 or schemes == {"", UNQUANTIZED})


def limits_for(file: GoldenFile, facts: EngineFacts) -> Limits:
    """Give the limits that count: closer ones where nothing but the output can be different."""
    limits = file.limits
    if not same_configuration(file.recorded, facts):
        return limits
    allowed = min(limits.drift_percent, limits.same_drift_percent)
    return limits.model_copy(update={"drift_percent": allowed})


def differences(recorded: Recorded, facts: EngineFacts) -> str:
    """Say in a sentence, with a space before it, how the engine's configuration differs from the recorded one."""
    found = [
        f"{CONFIGURATION[name]} {before} then and {now} now"
        for name, (before, now) in _different(recorded, facts).items()
    ]
    if _another_root(recorded, facts):
        found.append(f"model {recorded.root} then and {facts.root} now")
    return f" It was recorded with {', '.join(found)}." if found else ""


def _different(recorded: Recorded, facts: EngineFacts) -> dict[str, tuple[object, object]]:
    pairs = {name: (getattr(recorded, name), getattr(facts, name)) for name in CONFIGURATION}
    return {name: pair for name, pair in pairs.items() if all(pair) and pair[0] != pair[1]}
