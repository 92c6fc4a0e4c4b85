"""Steps that only some engines have a use for, roles, and what is sent for them."""

from __future__ import annotations

import base64
import io
import random
import wave
import zlib
from dataclasses import replace
from typing import Any

import pytest

from sidecar.engines.protocol import CompletionRequest
from sidecar.warmup.asks import OtherAsk, addressed
from sidecar.warmup.bursts import Ask, Burst, single
from sidecar.warmup.media import picture, recording
from sidecar.warmup.planner import Plan, draw_burst, fitted, make_plan
from sidecar.warmup.profiles import load_profile
from sidecar.warmup.prompts import PromptSource
from sidecar.warmup.roles import UNWARMED
from sidecar.warmup.sizes import Sweep
from sidecar.warmup.steps import PrefillStep
from tests.unit.warmup_engine import FACTS, profile

EMBEDS = replace(FACTS, tasks=("embed", "score"), chat=None)
NIXL = ("NixlConnector",)


def _plan(step: dict[str, Any], **facts: Any) -> Plan:
    return make_plan(profile(step), replace(FACTS, **facts))


def _bursts(step: dict[str, Any], **facts: Any) -> list[Burst]:
    return [burst for planned in _plan(step, **facts).steps for burst in planned.bursts]


def _requests(burst: Burst) -> list[CompletionRequest]:
    """Make the requests of a burst as `prompts.py` does, and what their asks make of them."""
    plain = PromptSource(random.Random(1), 32000).requests(burst, 9)
    return [
        addressed(ask, request)
        for phase, made in zip(burst.phases, plain, strict=True)
        for ask, request in zip([ask for ask in phase for _ in range(ask.count)], made, strict=True)
    ]


def test_one_adapter_of_each_rank_is_asked_and_then_all_of_those_at_once():
    ranks = {"a": 8, "b": 8, "c": 64}
    found = _bursts({"kind": "adapters"}, adapters=("a", "b", "c"), adapter_ranks=ranks)
    models = [sorted({str(request.model) for request in _requests(burst)}) for burst in found]
    assert models == [["a"], ["c"], ["a", "c"]]


def test_every_adapter_is_asked_where_ranks_are_unknown_up_to_a_cap_that_is_told():
    plan = _plan({"kind": "adapters", "at_most": 2, "together": False}, adapters=("a", "b", "c"))
    assert [burst.key for burst in plan.steps[0].bursts] == ["32 a", "32 b"]
    assert "1 of 3 adapters are left out: the step has at_most: 2" in plan.clipped[0]


def test_generations_are_longer_than_a_draft_and_its_check():
    found = _bursts({"kind": "speculative", "output_tokens": 3}, speculative_tokens=7)
    assert {ask.output_tokens for burst in found for phase in burst.phases for ask in phase} == {9}


def test_drafts_are_once_rejected_and_once_accepted():
    random_, repetitive = _bursts({"kind": "speculative", "prompt_tokens": [64]}, speculative_tokens=2)
    (plain,), (repeated,) = _requests(random_), _requests(repetitive)
    assert isinstance(plain.prompt, tuple)
    assert isinstance(repeated.prompt, tuple)
    assert len(set(plain.prompt)) > 40
    assert len(repeated.prompt) == 64
    assert repeated.prompt[8:] == repeated.prompt[:-8]


def test_each_rank_works_alone_and_then_all_at_once():
    found = _bursts({"kind": "data_parallel", "tokens": [10]}, dp_ranks=3)
    ranks = [[request.rank for request in _requests(burst)] for burst in found]
    assert ranks == [[0], [1], [2], [0, 1, 2]]


@pytest.mark.parametrize(
    ("step", "part"),
    [
        ({"kind": "adapters"}, "lists no adapters"),
        ({"kind": "speculative"}, "drafts no tokens"),
        ({"kind": "data_parallel", "tokens": [1]}, "one data-parallel rank"),
        ({"kind": "image"}, "doesn't tell whether it takes pictures"),
        ({"kind": "audio"}, "doesn't tell whether it takes recordings"),
    ],
)
def test_a_step_about_what_an_engine_lacks_is_left_out_and_is_no_fault(step, part):
    plan = _plan(step)
    assert plan.steps == ()
    assert part in plan.not_applicable[0]
    assert plan.dropped == ()


def test_an_engine_that_embeds_is_sent_no_text_generation_and_the_other_way_round():
    for facts, kinds in ((EMBEDS, {"embeddings", "score", "rerank"}), (FACTS, {"prefill", "decode", "chat"})):
        plan = make_plan(load_profile("sm90"), replace(facts, tasks=facts.tasks or ("generate",)))
        sent = {step.kind for step in plan.steps}
        assert sent >= kinds
        assert not sent & ({"embeddings", "transcription"} if facts is FACTS else {"prefill", "decode", "chat"})
        assert plan.warnings == ()


def test_random_draws_embed_where_the_engine_embeds():
    plan = make_plan(load_profile("cpu"), EMBEDS)
    for number in range(50):
        (phase,) = draw_burst(plan, random.Random(number), number).phases
        assert all(isinstance(ask, OtherAsk) and ask.work == "embed" and ask.output_tokens == 0 for ask in phase)


def test_embeddings_take_token_ids_and_scores_take_texts():
    (embed,) = _requests(single("x", OtherAsk(1, 40, 0, work="embed")))
    (score,) = _requests(single("x", OtherAsk(1, 5, 0, work="score", documents=3)))
    assert isinstance(embed.prompt, tuple)
    assert (len(embed.prompt), embed.work.kind if embed.work else "") == (40, "embed")
    assert isinstance(score.prompt, str)
    assert score.work is not None
    assert len(score.prompt.split()) == 5
    assert len(set(score.work.documents)) == 3


def test_a_plain_ask_changes_nothing():
    request = CompletionRequest(prompt=(1, 2), cache_salt="s")
    assert addressed(Ask(1, 2, 3), request) is request


def test_a_recording_is_a_wav_file_of_the_length_asked_for_and_not_silent():
    with wave.open(io.BytesIO(recording(1.5, random.Random(1)))) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (16000, 1, 2)
        assert file.getnframes() == 24000
        assert len(set(file.readframes(24000))) > 50


def test_a_picture_is_a_png_file_of_the_size_asked_for_and_differs_from_the_next():
    one, other = picture(40, 30, random.Random(1)), picture(40, 30, random.Random(2))
    assert one.startswith(b"\x89PNG\r\n\x1a\n")
    assert one[16:24] == (40).to_bytes(4, "big") + (30).to_bytes(4, "big")
    data = one[one.index(b"IDAT") + 4 : one.index(b"IEND") - 8]
    assert len(zlib.decompress(data)) == 30 * (1 + 40 * 3)
    assert one != other


def test_a_picture_goes_into_the_chat_message_as_data():
    (burst,) = _bursts({"kind": "image", "pixels": [64], "text": "What?"}, images=True)
    (request,) = _requests(burst)
    assert request.messages is not None
    image, text = request.messages[-1]["content"]
    assert image["image_url"]["url"].startswith("data:image/png;base64,")
    assert text == {"type": "text", "text": "What?"}


def test_a_recording_goes_into_the_chat_message_as_a_wav_file():
    (burst,) = _bursts({"kind": "audio", "seconds": [0.5], "text": "What?"}, sounds=True)
    (request,) = _requests(burst)
    assert request.messages is not None
    sound, text = request.messages[-1]["content"]
    assert (sound["type"], sound["input_audio"]["format"]) == ("input_audio", "wav")
    with wave.open(io.BytesIO(base64.b64decode(sound["input_audio"]["data"]))) as file:
        assert file.getnframes() == 8000
    assert text == {"type": "text", "text": "What?"}


def test_a_recording_goes_to_an_engine_that_transcribes():
    facts = replace(FACTS, tasks=("transcription",))
    plan = make_plan(load_profile("cpu"), facts)
    requests = [request for step in plan.steps for burst in step.bursts for request in _requests(burst)]
    assert [step.kind for step in plan.steps] == ["transcription"]
    assert all(request.work and request.work.audio.startswith(b"RIFF") for request in requests)


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_nothing_is_sent_where_each_request_would_need_a_peer(role):
    for connectors in ((), ("P2pNcclConnector",), ("NixlConnector", "MoRIIOConnector")):
        plan = make_plan(load_profile("sm90"), replace(FACTS, role=role, kv_connectors=connectors))
        assert plan.steps == ()
        assert UNWARMED in plan.unwarmed
        assert plan.unwarmed in plan.notes


def test_a_role_of_an_engine_that_is_not_known_is_sent_nothing():
    facts = replace(FACTS, engine="trtllm", role="prefill", kv_connectors=NIXL)
    assert make_plan(load_profile("sm90"), facts).unwarmed


def test_a_prefill_engine_is_asked_for_one_token_and_for_no_transfer():
    plan = make_plan(load_profile("sm90"), replace(FACTS, role="prefill", kv_connectors=NIXL))
    asks = [ask for step in plan.steps for burst in step.bursts for phase in burst.phases for ask in phase]
    assert asks
    assert {ask.output_tokens for ask in asks} == {1}
    assert not any("kv_transfer_params" in ask.fields or "min_tokens" in ask.fields for ask in asks)
    assert not {step.kind for step in plan.steps} & {"decode", "mixed", "speculative"}
    drawn = draw_burst(plan, random.Random(1), 1)
    assert {ask.output_tokens for phase in drawn.phases for ask in phase} == {1}
    assert fitted(plan, single("x", Ask(2, 9, 30))).phases == ((Ask(2, 9, 1),),)


def test_a_whole_prompt_is_repeated_as_a_full_hit_of_the_prefix_cache():
    found = _bursts({"kind": "shared_prefix", "prefix_tokens": [64], "suffix_tokens": [3], "concurrency": [2]})
    prompts = [[request.prompt for request in _requests(burst)] for burst in found]
    whole, partial = prompts
    assert len(set(whole)) == 1
    assert len(set(partial)) == 3
    assert len(whole) == 3


def test_sweeps_are_wider_where_the_engines_own_warm_up_is_off_and_it_is_said():
    facts = replace(
        FACTS, skipped_warmups=("DeepGEMM",), sources={"skipped_warmups": "environment VLLM_DEEP_GEMM_WARMUP=skip"}
    )
    usual, wider = make_plan(load_profile("sm90"), FACTS), make_plan(load_profile("sm90"), facts)
    lengths = [
        {burst.longest_prompt for step in plan.steps if step.name == "prefill sweep" for burst in step.bursts}
        for plan in (usual, wider)
    ]
    assert len(lengths[1]) > 1.5 * len(lengths[0])
    assert lengths[0] <= lengths[1]
    assert "VLLM_DEEP_GEMM_WARMUP=skip" in wider.widened
    assert wider.widened in wider.notes
    assert usual.widened == ""


def test_a_profile_without_a_sweep_gets_one_where_the_engine_skips_what_follows_sizes():
    facts = replace(FACTS, skipped_warmups=("FlashInfer autotuning",))
    extra = [step for step in make_plan(load_profile("cpu"), facts).profile.steps if step.title == "wider sweep"]
    assert isinstance(extra[0], PrefillStep)
    assert isinstance(extra[0].tokens[0], Sweep)
    unchanged = make_plan(load_profile("cpu"), replace(FACTS, skipped_warmups=("JIT kernels",)))
    assert "wider sweep" not in [step.name for step in unchanged.steps]
    assert "no sweep that could be wider" in unchanged.widened


def test_a_limit_that_is_only_the_least_of_all_defaults_gives_way_to_the_profiles():
    facts = replace(FACTS, max_num_seqs=256, sources={"max_num_seqs": "default, smallest of vLLM's"})
    assert make_plan(load_profile("cpu"), facts).limits.max_num_seqs == 128
    assert make_plan(load_profile("cpu"), replace(facts, sources={})).limits.max_num_seqs == 256


def test_what_the_engine_says_of_its_kv_cache_counts_over_blocks_times_their_size():
    assert make_plan(load_profile("cpu"), replace(FACTS, kv_tokens=999)).limits.kv_tokens == 999
