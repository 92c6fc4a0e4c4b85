"""The status page as text: what it says for each phase, and that nothing an engine says gets through
unescaped.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.engines.server_facts import SMALLEST
from sidecar.lifecycle import Phase
from sidecar.web import journey, page, panels, words
from sidecar.web.markup import Element, element, text, together
from tests.fakes import scenes

ATTACK = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>"


def render(status: Mapping[str, Any], refresh: int = 0) -> str:
    return page.render(status, now=scenes.EPOCH, refresh=refresh)


class Outline(HTMLParser):
    """Notes elements, and whether each is closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in ("meta", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def outline(document: str) -> Outline:
    found = Outline()
    found.feed(document)
    found.close()
    return found


def poisoned(value: object) -> object:
    """Put the attack into every string and every key."""
    if isinstance(value, Mapping):
        return {key: poisoned(item) for key, item in value.items()} | {ATTACK: ATTACK}
    if isinstance(value, list | tuple):
        return [poisoned(item) for item in value] + [ATTACK]
    return ATTACK if isinstance(value, str) else value


@pytest.mark.parametrize("name", list(scenes.SCENES))
def test_every_phase_gives_well_formed_html_with_its_sentence(name: str) -> None:
    board = scenes.SCENES[name]()
    document = render(board.to_json())
    assert outline(document).open == []
    assert text(board.gate.sentence) in document


def test_every_phase_has_a_headline_and_an_advice() -> None:
    assert set(page.VERDICTS) | {Phase.READY.value} == {phase.value for phase in Phase}


@pytest.mark.parametrize("name", list(scenes.SCENES))
def test_nothing_an_engine_says_becomes_an_element(name: str) -> None:
    status = scenes.SCENES[name]().to_json()
    attacked = outline(render({**poisoned(status), "phase": status["phase"]}))  # type: ignore[dict-item]
    assert attacked.open == []
    assert not attacked.seen & {"script", "img"}
    assert "onerror" not in attacked.attributes


def test_no_element_carries_a_script_or_a_style_of_its_own() -> None:
    for scene in scenes.SCENES.values():
        found = outline(render(scene().to_json()))
        assert "script" not in found.seen
        assert not [name for name in found.attributes if name == "style" or name.startswith("on")]


def test_the_security_policy_knows_the_style_sheet_that_is_sent() -> None:
    sent = re.search(r"<style>(.*?)</style>", render(scenes.ready().to_json()), re.DOTALL)
    assert sent is not None
    digest = base64.b64encode(hashlib.sha256(sent[1].encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}'" in page.CONTENT_SECURITY_POLICY


def test_nothing_is_fetched_from_elsewhere() -> None:
    document = render(scenes.ready().to_json())
    assert "@import" not in document
    assert "url(" not in document
    assert re.findall(r'(?:href|src)="(?!/|#|\?|data:)', document) == []


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None, max_examples=60)
@given(st.dictionaries(st.sampled_from(sorted(scenes.ready().to_json())), json_values))
def test_the_page_is_drawn_whatever_a_section_holds(odd: dict[str, Any]) -> None:
    assert outline(render({**scenes.ready().to_json(), **odd})).open == []


def test_a_page_of_nothing_is_still_a_page() -> None:
    assert "Not ready" in render({})


def test_a_huge_error_is_cut() -> None:
    board = scenes.ready()
    board.tell("x" * 1_000_000, "error")
    assert len(render(board.to_json())) < 100_000


def test_the_page_is_calm_when_ready_and_quick_while_something_happens() -> None:
    assert page.pace(scenes.ready().to_json()) > page.pace(scenes.warming().to_json())


def test_kernels_compiled_after_ready_change_the_headline() -> None:
    assert "Ready, but compiling under traffic" in render(scenes.compiling_under_traffic().to_json())
    assert "Ready, but compiling" not in render(scenes.ready().to_json())


def test_a_running_restore_and_a_running_warm_up_show_how_far_they_are() -> None:
    assert "730 MB of 1.3 GB restored" in render(scenes.restoring().to_json())
    assert "3 of 8 steps in round 1" in render(scenes.warming().to_json())


def test_facts_that_differ_are_said_to_be_of_the_nearest_key_and_of_no_publisher() -> None:
    shown = str(
        panels.restore({"restore": {"outcome": "partial", "differs": ["argv.--model is /b here and /a there"]}})
    )
    assert "<dt>Nearest known key differs in</dt><dd>argv.--model is /b here" in shown


def test_a_pod_that_served_and_is_suspended_is_not_called_not_ready_yet() -> None:
    document = render(scenes.suspended().to_json())
    assert "not ready yet" not in document
    assert document.count("served until 18:44:") == 2
    assert "none while it served" in document
    assert "not ready yet" in render(scenes.warming().to_json())
    assert "none while it served" not in render(scenes.warming().to_json())


def test_an_output_check_that_failed_stands_before_what_is_well() -> None:
    status = scenes.suspended().to_json()
    wrong = render({**status, "golden": {"outcome": "wrong", "sentence": "Wrong."}})
    assert wrong.index('id="golden"') < wrong.index('id="restore"')
    assert render(status).index('id="golden"') > render(status).index('id="restore"')


def test_a_limit_that_nobody_told_is_not_shown_as_the_engines() -> None:
    status = scenes.ready().to_json()
    engine = {"limits": {"max_num_seqs": 256}, "sources": {"max_num_seqs": SMALLEST}}
    assert "not told; vLLM&#x27;s smallest default is 256" in render({**status, "engine": engine})
    assert "not told" not in render(status)


def test_why_a_step_failed_keeps_within_the_card_however_wide_the_table_is() -> None:
    document = render(scenes.ready().to_json())
    assert '<span class="said">The engine answered 404' in document
    assert re.search(r"tr\.why \.said\{[^}]*position:sticky;left:0;[^}]*max-width:100cqw", document)


def test_a_failed_check_of_the_output_is_marked() -> None:
    board = scenes.suspended()
    board.golden = {
        "outcome": "degenerate",
        "checks": [{"name": "batch", "passed": False, "detail": "one token 64 times"}],
    }
    assert "batch: one token 64 times" in render(board.to_json())


def test_an_unavailable_gpu_shows_its_reason_and_an_unused_one_nothing() -> None:
    assert "libnvidia-ml.so.1" in render(scenes.degraded().to_json())
    assert 'id="gpu"' not in render({**scenes.ready().to_json(), "gpu": {}})


# -- markup --------------------------------------------------------------------------------------------------


def test_text_is_escaped_once_and_elements_not_again() -> None:
    assert element("p", "a < b & c") == "<p>a &lt; b &amp; c</p>"
    assert element("p", element("b", "<")) == "<p><b>&lt;</b></p>"


def test_attributes_are_escaped() -> None:
    assert element("p", title='"><script>') == '<p title="&quot;&gt;&lt;script&gt;"></p>'


def test_control_and_direction_characters_become_visible() -> None:
    assert text("a\x00b\x1bc\u202ed\ud800e") == "a\ufffdb\ufffdc\ufffdd\ufffde"


def test_none_is_left_out_and_lists_are_flattened() -> None:
    assert together("a", None, ["b", ["c", None]]) == "abc"
    assert isinstance(together(), Element)


# -- words ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "words_"),
    [
        (0.0, "0 ms"), (0.0804, "80 ms"), (0.9996, "1.00 s"), (2.314, "2.31 s"), (9.996, "10.0 s"),
        (84.24, "84.2 s"), (99.96, "100 s"), (119.6, "2 min 00 s"), (185, "3 min 05 s"),
        (3599.7, "1 h 00 min"), (7500, "2 h 05 min"), (273_600, "3 d 4 h"),
        (None, "–"), (float("nan"), "–"), ("x", "–"),
    ],
)  # fmt: skip
def test_durations_are_written_for_people(seconds: object, words_: str) -> None:
    assert words.seconds(seconds) == words_


@pytest.mark.parametrize(
    ("size", "words_"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (391e6, "391 MB"),
        (1.284e9, "1.3 GB"),
        (2e12, "2.0 TB"),
        (None, "–"),
    ],
)
def test_sizes_are_written_for_people(size: object, words_: str) -> None:
    assert words.size(size) == words_


def test_a_time_out_of_range_is_no_error() -> None:
    assert words.moment(1e300) == words.NOTHING
    assert words.moment(scenes.EPOCH) == "17:00:00"


# -- journey -------------------------------------------------------------------------------------------------


def walked(*phases: str) -> journey.Journey:
    return journey.latest(
        [{"phase": p, "since": n, "seconds": 1.0, "ended": n < len(phases) - 1} for n, p in enumerate(phases)]
    )


def test_the_way_to_ready_ends_at_ready() -> None:
    way = walked("starting", "warming", "ready")
    assert ([s.phase for s in way.stays], way.arrived, way.title) == (
        ["starting", "warming"],
        True,
        "Time to ready",
    )


def test_a_way_that_goes_on_is_under_way() -> None:
    way = walked("starting", "warming")
    assert (way.seconds, way.arrived, way.title) == (2.0, False, "Under way for")


def test_the_second_way_begins_after_the_first_ready() -> None:
    way = walked("starting", "ready", "suspended", "warming")
    assert [s.phase for s in way.stays] == ["suspended", "warming"]
    assert [s.phase for s in way.earlier] == ["starting", "ready"]
    assert way.title == "Without traffic for"


def test_draining_after_ready_belongs_to_the_way_that_arrived() -> None:
    way = walked("starting", "ready", "draining")
    assert ([s.phase for s in way.stays], way.said) == (["starting"], "was ready")


def test_a_way_after_days_of_serving_gives_the_day_on_which_that_ended() -> None:
    spans = [
        {"phase": p, "since": scenes.EPOCH, "seconds": 200_000.0, "ended": p == "ready"} for p in ("ready", "suspended")
    ]
    assert journey.latest(spans).said == "served until 2026-12-02 00:33 UTC"


def test_draining_before_ready_never_arrived() -> None:
    way = walked("starting", "warming", "draining")
    assert (way.arrived, way.seconds) == (False, 3.0)
