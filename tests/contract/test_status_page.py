"""The status page in a real browser: what it shows, that it fits, that it can be read, and that it asks
for nothing else.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from sidecar.lifecycle import Gate
from sidecar.metrics import Metrics
from sidecar.status import Board
from sidecar.web import server
from tests.contract import browser
from tests.fakes import scenes

#: Least contrast of text, and of large text. WCAG 2.2, success criterion 1.4.3.
CONTRAST = """
(() => {
  const parse = c => { const m = c.match(/[\\d.]+/g).map(Number); return m.length < 4 ? [...m, 1] : m };
  const channel = v => { v /= 255; return v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4 };
  const light = c => .2126 * channel(c[0]) + .7152 * channel(c[1]) + .0722 * channel(c[2]);
  const behind = e => {
    for (; e; e = e.parentElement) {
      const c = parse(getComputedStyle(e).backgroundColor);
      if (c[3] > 0) return c;
    }
    return [255, 255, 255, 1];
  };
  const bad = [];
  for (const e of document.querySelectorAll('body *')) {
    const own = [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim());
    if (!own || e.closest('svg') || !e.getClientRects().length) continue;
    const style = getComputedStyle(e), a = light(parse(style.color)), b = light(behind(e));
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05), size = parseFloat(style.fontSize);
    const least = size >= 24 || (size >= 18.66 && style.fontWeight >= 700) ? 3 : 4.5;
    if (ratio < least) bad.push(e.textContent.trim().slice(0, 40) + ' ' + ratio.toFixed(2));
  }
  return bad;
})()
"""
NAMELESS = """
(() => {
  const all = selector => [...document.querySelectorAll(selector)];
  const lacks = (e, name) => !e.getAttribute(name);
  const unnamed = e => !document.getElementById(e.getAttribute('aria-labelledby'));
  return all('svg').filter(e => lacks(e, 'aria-hidden') && lacks(e, 'aria-label')).length
    + all('section').filter(unnamed).length
    + all('thead th').filter(e => e.scope !== 'col').length
    + all('[role=region]').filter(e => lacks(e, 'aria-label')).length;
})()
"""
SPILLED = """
[...document.querySelectorAll('main *, header *, footer *')]
  .filter(e => !e.closest('.scroll') && !e.closest('svg') && !e.closest('.hidden'))
  .filter(e => e.getBoundingClientRect().right > WIDTH + 1).map(e => e.className || e.tagName)
"""


class Served:
    """A tab, and the one board that is served to it."""

    def __init__(self, tab: browser.Tab, board: Board, address: str) -> None:
        self.tab, self._board, self._address = tab, board, address

    async def show(self, board: Board, width: int = 1280, dark: bool = False) -> browser.Tab:
        """Open the page of a board."""
        self._board.__dict__.update(board.__dict__)
        await self.tab.open(self._address + "/?refresh=0", width=width, dark=dark)
        return self.tab


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def page() -> AsyncIterator[Served]:
    chromium = browser.executable()
    if chromium is None:
        pytest.skip("chromium is missing (Debian: package chromium), and the page can't be looked at without a browser")
    board = scenes.starting()
    listening = await server.serve(board, Metrics("0.1.0", "launcher"), "127.0.0.1", 0)
    host, port = listening.addresses[0]
    async with browser.browser(chromium) as tab:
        yield Served(tab, board, f"http://{host}:{port}")
    await listening.stop()


pytestmark = pytest.mark.asyncio(loop_scope="module")
every_scene = pytest.mark.parametrize("name", list(scenes.SCENES))


@every_scene
async def test_the_reason_is_the_first_sentence_of_the_page(page: Served, name: str) -> None:
    board = scenes.SCENES[name]()
    tab = await page.show(board)
    assert await tab.evaluate("document.querySelector('main .why').textContent") == board.gate.sentence
    headline = await tab.evaluate("document.querySelector('h1').textContent")
    assert headline.startswith("Ready") == board.gate.open
    assert await tab.evaluate("document.querySelector('.next').textContent.length") > 20


@every_scene
async def test_the_page_asks_for_nothing_but_itself_and_breaks_no_policy(page: Served, name: str) -> None:
    tab = await page.show(scenes.SCENES[name]())
    assert len(tab.requests) == 1
    assert tab.complaints == []


@every_scene
@pytest.mark.parametrize("width", [320, 390, 768, 1280])
async def test_nothing_spills_over_the_side(page: Served, name: str, width: int) -> None:
    tab = await page.show(scenes.SCENES[name](), width=width)
    assert await tab.evaluate("document.documentElement.scrollWidth") <= width
    assert await tab.evaluate(SPILLED.replace("WIDTH", str(width))) == []


@every_scene
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
async def test_all_text_can_be_read_against_what_is_behind_it(page: Served, name: str, dark: bool) -> None:
    tab = await page.show(scenes.SCENES[name](), dark=dark)
    assert await tab.evaluate(CONTRAST) == []


@every_scene
async def test_every_picture_region_and_column_has_a_name(page: Served, name: str) -> None:
    tab = await page.show(scenes.SCENES[name]())
    assert await tab.evaluate(NAMELESS) == 0
    assert await tab.evaluate("document.querySelectorAll('h1').length") == 1
    assert await tab.evaluate("document.querySelectorAll('main').length") == 1


async def test_the_two_colour_schemes_differ(page: Served) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    light = await (await page.show(scenes.ready())).evaluate(background)
    dark = await (await page.show(scenes.ready(), dark=True)).evaluate(background)
    assert light != dark


async def test_what_a_hostile_engine_says_is_shown_and_never_run(page: Served) -> None:
    attack = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
    board = scenes.warming()
    board.engine = {
        **board.engine,
        "model": attack,
        "version": attack,
        "detail": attack,
        "limits": {attack: attack},
    }
    board.gate = Gate(False, False, attack)
    board.degraded = (attack,)
    board.tell(attack, "error")
    board.warmup = {
        **board.warmup,
        "steps": [{"name": attack, "state": attack, "detail": attack}],
        "kernels_after_ready": {attack: 1},
    }
    board.coverage = {"visited": [(4, 2), attack], "omitted": attack, attack: attack}
    board.history = {"key": attack, "starts": [{"generation": attack, "outcome": attack, "seconds": 3.0, "at": attack}]}
    tab = await page.show(board)
    assert await tab.evaluate("document.querySelectorAll('script, img').length") == 0
    assert "owned" not in (await tab.evaluate("document.title")).split("·")[0]
    assert await tab.evaluate("document.querySelector('.why').textContent") == attack
    assert tab.complaints == []


async def test_the_pictures_have_a_title_and_the_same_as_a_table_behind_the_keyboard(page: Served) -> None:
    tab = await page.show(scenes.ready_after_restore(), width=320)
    for card in ("coverage", "history"):
        inside = f"document.querySelector('#{card}')"
        assert await tab.evaluate(f"{inside}.querySelectorAll('.plot [role=img] > title').length") == 1
        assert await tab.evaluate(f"{inside}.querySelector('.plot [role=img]').getBoundingClientRect().width") > 150
        await tab.evaluate(f"{inside}.querySelector('summary').focus()")
        for kind in ("keyDown", "keyUp"):
            await tab.call(
                "Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", windowsVirtualKeyCode=13, text="\r"
            )
        assert await tab.evaluate(f"{inside}.querySelector('details').open")
        assert await tab.evaluate(f"{inside}.querySelectorAll('tbody tr').length") > 1
    assert await tab.evaluate("document.documentElement.scrollWidth") <= 320


async def test_the_largest_map_and_the_longest_history_fit_a_narrow_screen(page: Served) -> None:
    board = scenes.ready_after_restore()
    board.coverage = {"visited": [(n * 20 + 1, 1 + n % 4096) for n in range(50_000)], "max_tokens": 1 << 20}
    board.history = {"starts": [{"generation": "9" * 900, "outcome": "ready", "seconds": n + 1.0} for n in range(900)]}
    tab = await page.show(board, width=320)
    assert await tab.evaluate("document.documentElement.scrollWidth") <= 320
    assert await tab.evaluate(SPILLED.replace("WIDTH", "320")) == []
    assert await tab.evaluate("document.querySelectorAll('*').length") < 2000
    assert tab.complaints == []


async def test_the_page_reloads_itself_without_scripts(page: Served) -> None:
    await page.tab.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        await page.tab.open(page._address + "/?refresh=1")
        page.tab._events.clear()
        await page.tab.until("Page.loadEventFired")
        assert page.tab.requests == [page._address + "/?refresh=1"]
    finally:
        await page.tab.call("Emulation.setScriptExecutionDisabled", value=False)


@every_scene
async def test_a_screenshot_of_each_phase_is_left_for_people(page: Served, name: str, tmp_path: Path) -> None:
    folder = Path(os.environ.get("WARMUP_TEST_SCREENSHOTS", "") or tmp_path)
    for look, width, dark in (("light", 1280, False), ("dark", 1280, True), ("narrow", 390, False)):
        picture = folder / f"{name}-{look}.png"
        await (await page.show(scenes.SCENES[name](), width=width, dark=dark)).screenshot(picture)
        assert picture.stat().st_size > 10_000
