"""Golden files: what is refused, with its place and a suggestion; and the set of prompts that is shipped."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
import yaml

from sidecar.engines.protocol import EngineFacts
from sidecar.errors import GoldenError
from sidecar.golden import load, load_prompts, save, starter_prompts
from sidecar.golden.asking import batch_size
from sidecar.golden.files import NODE_LIMIT, SIZE_LIMIT, STARTER, GoldenFile, golden_text
from sidecar.golden.identity import differences, limits_for
from sidecar.golden.manner import readable
from sidecar.golden.schema import SHIPPED, golden_schema, schema_text
from tests.unit.golden_scene import scene

GOOD = """\
version: 1
recorded: {at: now, engine: vllm 0.32.0, model: m}
models: [m]
prompts:
  - {name: a, text: One, answer: {text: two, ids: 1 2, logprobs: -0.1 -0.2}}
"""


def written(folder: Path, text: str) -> Path:
    """Write a file."""
    path = folder / "golden.yaml"
    path.write_text(text)
    return path


def test_numbers_are_read_from_one_text(tmp_path: Path):
    (file,) = load(written(tmp_path, GOOD)).files
    assert file.prompts[0].answer.ids == (1, 2)
    assert file.prompts[0].answer.logprobs == (-0.1, -0.2)


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ("models: [m]", "model: [m]", "golden.yaml:3:1: model: unknown key `model`; did you mean `models`?"),
        ("models: [m]", "models: [m]\nlimits: {driftpercent: 3}", "did you mean `drift_percent`?"),
        ("ids: 1 2", "ids: 1 x", "golden.yaml:5:"),
        ("text: One,", "text: One, expect: '(',", "no regular expression"),
        ("text: One,", "text: One, passage: mill,", "names the passage 'mill'; there are none"),
        ("text: One,", "", "needs either `text` or `messages`"),
        ("version: 1", "version: 2", "install a newer one"),
        ("version: 1", "version: 1\nversion: 1", "given twice"),
        ("recorded: {at: now, engine: vllm 0.32.0, model: m}\n", "", "prompts without answers"),
        ("prompts:", "prompts: []\nx:", "golden.yaml:"),
        ("logprobs: -0.1 -0.2", "scored: -0.1 nan", "golden.yaml:5:56: scored: number 2 is nan"),
        ("logprobs: -0.1 -0.2", "margins: [.inf, 1.0]", "number 1 is inf; all must be finite"),
        ("model: m}", "model: m, noise_percent: .nan}", "finite"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(tmp_path: Path, before: str, after: str, says: str):
    assert before in GOOD
    with pytest.raises(GoldenError) as caught:
        load(written(tmp_path, GOOD.replace(before, after, 1)))
    assert says in str(caught.value)


@pytest.mark.parametrize("text", ["", "just text", "- 1", "{", "\x00"])
def test_a_file_that_is_no_golden_file_is_refused_in_a_sentence(tmp_path: Path, text: str):
    with pytest.raises(GoldenError):
        load(written(tmp_path, text))


def test_a_missing_file_and_an_empty_directory_are_refused(tmp_path: Path):
    with pytest.raises(GoldenError, match="can't be read"):
        load(tmp_path / "none.yaml")
    with pytest.raises(GoldenError, match="no golden file"):
        load(tmp_path)


def test_a_directory_gives_all_its_files_and_no_hidden_ones(tmp_path: Path):
    for name in ("a.yaml", "b.yml", ".c.yaml", "notes.txt"):
        (tmp_path / name).write_text(GOOD)
    (tmp_path / "d.json").write_text(json.dumps(yaml.safe_load(GOOD)))
    assert len(load(tmp_path).files) == 3


def test_a_golden_file_gives_its_prompts_to_be_recorded_again(tmp_path: Path):
    found = load_prompts(written(tmp_path, GOOD))
    assert [each.name for each in found.prompts] == ["a"]


def test_the_starter_set_has_more_than_sixty_prompts_of_many_kinds():
    found = starter_prompts()
    text = [each for each in found.prompts if each.text]
    assert len(text) >= 64
    assert sum(bool(each.passage) for each in text) >= 8
    assert any(each.messages and not each.picture for each in found.prompts)
    assert any(each.picture for each in found.prompts)
    assert max(map(len, found.passages.values())) > 2000
    assert sum(not each.text.isascii() for each in text) >= 10


def test_pictures_are_the_same_each_time():
    prompt = next(each for each in starter_prompts().prompts if each.picture)
    assert prompt.content({}) == prompt.content({})


def test_the_shipped_schema_is_the_one_of_the_models():
    assert SHIPPED.read_text(encoding="utf-8") == schema_text(), (
        "write it anew with sidecar.golden.schema.schema_text()"
    )


def test_the_schema_takes_what_the_models_take_and_refuses_the_same():
    check = jsonschema.Draft202012Validator(golden_schema())
    check.validate(yaml.safe_load(GOOD))
    check.validate(yaml.safe_load(STARTER.read_text(encoding="utf-8")))
    assert list(check.iter_errors({**yaml.safe_load(GOOD), "unknown": 1}))
    assert list(check.iter_errors({"prompts": []}))


@pytest.mark.parametrize(
    ("facts", "size"),
    [
        ({"cudagraph_sizes": (1, 2, 4, 8, 16, 24, 32, 64)}, 32),
        ({"cudagraph_sizes": (1, 2, 4, 8), "max_num_seqs": 64}, 8),
        ({"max_num_seqs": 20}, 16),
        ({"max_num_seqs": 3}, 3),
        ({"max_num_seqs": 1}, 1),
        ({"kv_tokens": 480}, 8),
        ({}, 32),
    ],
)
def test_a_batch_is_captured_and_fits_the_engine(facts: dict[str, object], size: int):
    prompts = starter_prompts().prompts[:30]
    prompts = tuple(each.model_copy(update={"max_tokens": 30}) for each in prompts)
    assert batch_size(EngineFacts("vllm", "1", "m", **facts), 32, prompts) == size  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("count", "size"), [(24, 24), (25, 32), (32, 32), (33, 24), (48, 24), (64, 32), (70, 24), (4, 8)]
)
@pytest.mark.parametrize("sizes", [(1, 2, 4, 8, 16, 24, 32, 64), ()])
def test_a_large_batch_is_chosen_that_leaves_few_places_to_fill(count: int, size: int, sizes: tuple[int, ...]):
    prompts = starter_prompts().prompts[:count]
    assert batch_size(EngineFacts("vllm", "1", "m", cudagraph_sizes=sizes), 32, prompts) == size


@pytest.mark.parametrize(
    ("engine", "allowed"),
    [
        ({"version": "0.32.0", "kv_cache_dtype": "auto"}, 2.0),
        ({"version": "0.32.0", "kv_cache_dtype": "fp8_e4m3"}, 10.0),
        ({"version": "0.33.0", "kv_cache_dtype": "auto"}, 10.0),
        ({"version": None, "kv_cache_dtype": "auto"}, 10.0),
        ({"version": "0.32.0"}, 10.0),
        ({"version": "0.32.0", "kv_cache_dtype": "auto", "quantization": "none", "root": "/mnt/m"}, 2.0),
        ({"version": "0.32.0", "kv_cache_dtype": "auto", "quantization": "fp8"}, 10.0),
        ({"version": "0.32.0", "kv_cache_dtype": "auto", "root": "org/m-FP8"}, 10.0),
    ],
)
def test_less_drift_is_allowed_where_engine_and_configuration_are_those_recorded(
    tmp_path: Path, engine: dict[str, str], allowed: float
):
    recorded = GOOD.replace("model: m}", "model: m, root: org/m, kv_cache_dtype: auto, attention_backend: A}", 1)
    (file,) = load(written(tmp_path, recorded)).files
    facts = EngineFacts(**{"engine": "vllm", "version": None, "model": "m", **engine})  # type: ignore[arg-type]
    assert limits_for(file, facts).drift_percent == allowed
    assert ("It was recorded with model org/m then and org/m-FP8 now." in differences(file.recorded, facts)) is (
        facts.root == "org/m-FP8"
    )


def test_long_prompts_are_not_read_back_where_logits_would_fill_memory():
    assert readable(300, 152_000)
    assert not readable(3000, 152_000)
    assert readable(1900, 4096)
    assert not readable(300, None)


def test_a_file_that_is_too_big_is_refused_before_anything_is_made_of_it(tmp_path: Path):
    big = written(tmp_path, GOOD + "# " + "x" * SIZE_LIMIT)
    with pytest.raises(GoldenError, match=r"too big: it has 2\.0 MiB, and a golden file has at most 2 MiB"):
        load(big)
    os.truncate(big, 2**42)
    with pytest.raises(GoldenError, match=r"too big: it has 4194304\.0 MiB"):
        load(big)
    with pytest.raises(GoldenError, match=r"too big: it has more than 30000 keys and values"):
        load(written(tmp_path, GOOD + "unknown: [" + "[]," * NODE_LIMIT + "]"))


def test_the_files_of_a_directory_are_bounded_together(tmp_path: Path):
    for at in range(5):
        (tmp_path / f"{at}.yaml").write_text(GOOD + "# " + "x" * (SIZE_LIMIT - len(GOOD) - 2))
    with pytest.raises(GoldenError, match=r"its 5 golden files have 10\.0 MiB, and 8\.0 MiB are allowed"):
        load(tmp_path)
    (tmp_path / "4.yaml").unlink()
    assert len(load(tmp_path).files) == 4


def test_a_recording_that_could_not_be_loaded_again_is_not_written(tmp_path: Path):
    found = load(written(tmp_path, GOOD))
    prompt = found.files[0].prompts[0]
    many = tuple(prompt.model_copy(update={"name": f"p{at}"}) for at in range(3000))
    with pytest.raises(GoldenError, match="The recording would be too big"):
        save(replace(found, files=(found.files[0].model_copy(update={"prompts": many}),)), tmp_path / "new.yaml")
    assert not (tmp_path / "new.yaml").exists()


async def test_the_starter_set_recorded_fits_ten_times(tmp_path: Path):
    async with scene(vocab_size=152_000) as here:
        text = golden_text((await here.record(starter_prompts())).files[0])
    assert len(text.encode()) < SIZE_LIMIT / 10
    assert sum(1 for _ in yaml.parse(text)) < NODE_LIMIT / 10


def test_a_golden_file_keeps_what_it_does_not_say_at_its_defaults(tmp_path: Path):
    (file,) = load(written(tmp_path, GOOD)).files
    assert isinstance(file, GoldenFile)
    assert file.limits.drift_percent == 10
