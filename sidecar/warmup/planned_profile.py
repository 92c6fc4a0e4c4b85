"""A profile and the targets of a bench from what AIConfigurator planned, as YAML that says where each number is from.

Where the numbers stand in its folder is known to `aiconfigurator.py`.
"""

from __future__ import annotations

import json

from sidecar.engines.protocol import EngineFacts
from sidecar.errors import ProfileError
from sidecar.warmup.aiconfigurator import KNOWN, Planned
from sidecar.warmup.choice import choose_profile

#: Its names of types and schemes, where engines and profiles have others (aiconfigurator/sdk/common.py, 0.12).
_KV_CACHES = {"bfloat16": "auto", "float16": "auto"}
_SCHEMES = {
    "bfloat16": "none", "fp8": "fp8", "fp8_static": "fp8", "fp8_block": "fp8", "fp8_ootb": "fp8", "nvfp4": "nvfp4",
    "w4a16_nvfp4": "nvfp4", "nvfp4_wo": "nvfp4",
}  # fmt: skip
#: Prompts are planned with one length. Real ones lie around it: from half of it to one and a half.
AROUND = (1, 2), (3, 2)
PROMPTS, BESIDE, DECODES, PREFIX = (
    "planned prompts",
    "planned prompt beside decodes",
    "planned decodes",
    "planned prefix",
)

_DYNAMO = (
    "# The deployment that it generates runs workers of Dynamo, which take no requests but from Dynamo's frontend; this is",
    "# for the same engine behind a port of its own.",
)


def base_of(plan: Planned, sm: str) -> str:
    """Name the shipped profile that is extended: the one that would be taken for such an engine on this GPU.

    Profiles for GPUs are made for vLLM; those of other engines extend them too, since the kinds of steps are the same.
    """
    scheme = _SCHEMES.get(plan.weights)
    facts = EngineFacts(
        engine="vllm",
        version=None,
        model=plan.model,
        kv_cache_dtype=_KV_CACHES.get(plan.kv_cache, plan.kv_cache),
        quantization=scheme,
        weights=scheme,
        role=plan.role or "both",
        tasks=("generate",),
    )
    return choose_profile(sm, facts).profile.name


def profile_text(plan: Planned, sm: str = "") -> str:
    """Write the profile; `sm` counts over what the system's name tells. Raises ProfileError where neither tells one."""
    sm = sm or plan.sm or ""
    if not sm:
        raise ProfileError(f"AIConfigurator's system '{plan.system}' is of no known SM version; give it with --sm.")
    base, where = base_of(plan, sm), plan.where
    role = f", the engines for {plan.role}" if plan.role else ""
    lines = [
        f"# Made by `warmup-sidecar profiles from-aiconfigurator` from {plan.result}.",
        f"# {plan.experiment}, configuration {plan.rank}{role}: {plan.model} on {plan.system} with {plan.backend} {plan.version}.",
        "# Behind each number stands where it is from. Read it through, change what you know better, and set WARMUP_PROFILE to",
        f"# its path. The files are read as {KNOWN} writes them.",
        *(_DYNAMO if plan.dynamo else ()),
        "#",
        "description: "
        + _quoted(f"{plan.model} on {plan.system} with {plan.backend}, as AIConfigurator planned it{role}."),
        "version: 1",
        f"extends: {base}"
        + _note(f"what is taken for {sm}, KV cache {plan.kv_cache}, weights {plan.weights} ({where})"),
        "",
        "match:",
        f"  sm: [{sm}]" + _note(f"{where}, system {plan.system}" if sm == plan.sm else "--sm"),
        f"  engine: [{_quoted(plan.backend)}]" + _note(f"{where}, backend"),
        f"  model: [{_quoted(plan.model)}]" + _note(f"{where}, model"),
        "",
        *_assume(plan),
        "steps:",
        *_steps(plan),
        "",
        *_mix(plan),
    ]
    return "\n".join(lines) + "\n"


def targets_text(plan: Planned) -> str:
    """Write what `bench --targets` sends and compares with."""
    predicted = {name: value for name, value in plan.predicted.items() if name in plan.targets}
    predicted["output_tokens_per_s"] = plan.predicted["output_tokens_per_s"]
    whole = f"{plan.gpus} GPU{'' if plan.gpus == 1 else 's'}"
    engines = (
        f"one engine of {whole}"
        if not plan.role
        else f"one group of engines for prompts and for output, {whole} in all"
    )
    return "\n".join([
        f"# Made by `warmup-sidecar profiles from-aiconfigurator` from {plan.result}: {plan.where}.",
        "# `warmup-sidecar bench --url http://… --targets THIS_FILE` sends this and compares.",
        "version: 1",
        f"prompt_tokens: {plan.prompt_tokens}" + _note(f"{plan.where}, isl"),
        f"output_tokens: {plan.output_tokens}" + _note(f"{plan.where}, osl"),
        f"concurrency: {plan.concurrency}" + _note(f"{plan.where}, concurrency: of {engines}"),
        "# Its estimates are of an average request under steady load, so the mean is compared; p50, p95 and p99 work too.",
        "statistic: mean",
        *(f"{name}: {value:g}" + _note(f"{plan.asked_in}, what was asked for") for name, value in plan.targets.items()),
        "# What it says this configuration reaches: shown beside what is measured, and no target.",
        "predicted:",
        *(f"  {name}: {value:g}" + _note(plan.where) for name, value in predicted.items()),
        *_unlike(plan),
    ]) + "\n"  # fmt: skip


def _assume(plan: Planned) -> list[str]:
    limits = [
        f"  {name}: {each.value}" + _note(f"{plan.experiment}/{each.source}")
        for name, each in sorted(plan.limits.items())
        if each.value >= (1 if name == "max_num_seqs" else 16)
    ]
    return ["# Taken for granted where the engine does not tell.", "assume:", *limits, ""] if limits else []


def _steps(plan: Planned) -> list[str]:
    length, batch, where = plan.prompt_tokens, plan.batch, plan.where
    lines: list[str] = []
    if plan.role != "decode":
        lines += [
            "  # Prompts as long as planned, and one token more: kernels differ for multiples of 16 and other lengths.",
            "  - kind: prefill",
            f"    name: {PROMPTS}",
            f"    tokens: {_list(length, length + 1)}" + _note(f"{where}, isl"),
            f"    concurrency: {_list(1, batch)}" + _note(f"one, and {where}, {_batch(plan)}: all at once"),
            "    output_tokens: 2",
        ]
        if plan.prefix_tokens and plan.prefix_tokens < length:
            lines += [
                "  - kind: shared_prefix",
                f"    name: {PREFIX}",
                f"    prefix_tokens: [{plan.prefix_tokens}]" + _note(f"{where}, prefix"),
                f"    suffix_tokens: [{length - plan.prefix_tokens}]" + _note("isl less prefix"),
                f"    concurrency: {_list(1, batch)}" + _note(f"{where}, {_batch(plan)}"),
            ]
    if plan.beside:
        lines += [
            "  # The step that it plans with: one prompt is read while the others generate.",
            "  - kind: mixed",
            f"    name: {BESIDE}",
            f"    decodes: {plan.beside}" + _note(f"{where}, num_gen_reqs"),
            f"    decode_prompt_tokens: {length}" + _note(f"{where}, isl"),
            f"    prefill_tokens: [{length}]" + _note(f"{where}, isl"),
        ]
    if plan.role != "prefill":
        total = length + plan.output_tokens
        lines += [
            "  # Decodes at the planned batch and at half of it, over contexts at the beginning and at the end of an answer.",
            "  - kind: decode",
            f"    name: {DECODES}",
            f"    batch: {_list(max(1, batch // 2), batch)}" + _note(f"{where}, {_batch(plan)}"),
            f"    prompt_tokens: {_list(length, total)}" + _note(f"{where}, isl and isl + osl"),
            "    output_tokens: 8",
        ]
    return lines


def _mix(plan: Planned) -> list[str]:
    (low, low_by), (high, high_by) = AROUND
    start, end = max(1, plan.prompt_tokens * low // low_by), max(1, plan.prompt_tokens * high // high_by)
    return [
        "# What is searched and drawn from. One length is planned, and real prompts lie around it: half of isl to one and a half",
        "# times. That is a guess of this program; `warmup-sidecar profiles learn` gives what users really send. Output lengths",
        "# are those of the extended profile, not osl: which kernels run depends on what shares a step, not on how long it runs.",
        "mix:",
        f"  prompt_tokens: {{from: {start}, to: {end}}}" + _note(f"around {plan.where}, isl"),
        f"  concurrency: {{from: 1, to: {plan.batch}}}" + _note(f"{plan.where}, {_batch(plan)}"),
    ]


def _unlike(plan: Planned) -> list[str]:
    if not plan.prefix_tokens:
        return []
    return [
        f"# {plan.prefix_tokens} of a prompt's tokens are planned to be cached ({plan.where}, prefix). The prompts of bench",
        "# are new to every cache, so its times to the first token are longer than planned.",
    ]


def _batch(plan: Planned) -> str:
    """Name the column of the batch of one engine."""
    return {"prefill": "(p)bs", "decode": "(d)bs"}.get(plan.role, "bs")


def _list(*numbers: int) -> str:
    return json.dumps(sorted(set(numbers)))


def _quoted(text: str) -> str:
    """Write a text so that YAML takes it as one, whatever is in it."""
    return json.dumps(text, ensure_ascii=False)


def _note(text: str) -> str:
    return "  # " + " ".join(text.split())
