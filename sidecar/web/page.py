"""The status page: one HTML document from the JSON of `/status`, without scripts and without anything from
elsewhere.

The head of the page lives here (verdict, why, what to do, tiles, timeline); the cards below it in
`panels.py`.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from typing import Any

from sidecar.web import (
    coverage_panel,
    figures,
    golden_panel,
    gpu_panel,
    history_panel,
    journey,
    panels,
    parts,
    warmup_panels,
    words,
)
from sidecar.web.markup import Element, element, raw, together
from sidecar.web.style import STYLE

_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
#: No script may run, whatever an engine manages to put into its strings; the one style sheet is known by its
#: digest.
CONTENT_SECURITY_POLICY = (
    f"default-src 'none'; style-src 'sha256-{_HASH}'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
#: Seconds between two reloads: while something happens, and while all is quiet.
BUSY_S, QUIET_S = 3, 15

#: Phase → headline of a pod that is not ready, tone, and what an on-call engineer should do.
VERDICTS: Mapping[str, tuple[str, str, str]] = {
    "starting": ("Starting", "work", "Nothing: this takes about a second."),
    "awaiting_launcher": (
        "Not ready: waiting for the engine's container",
        "work",
        "Nothing, while images are pulled. If it lasts: `kubectl describe pod` shows what the engine's "
        "container waits for.",
    ),
    "restoring": (
        "Not ready: restoring kernel caches",
        "work",
        "Nothing: restore has a hard cap (WARMUP_RESTORE_TIMEOUT_S), then the engine starts without it.",
    ),
    "awaiting_engine": (
        "Not ready: waiting for the engine",
        "work",
        "Nothing, while it loads weights and captures graphs, which takes minutes. If it lasts: read the "
        "engine container's log.",
    ),
    "warming": (
        "Not ready: warming up",
        "work",
        "Nothing: warm-up ends when nothing is left to compile, at the latest after "
        "WARMUP_WARM_BUDGET_S; then "
        "WARMUP_ON_UNWARMED decides.",
    ),
    "verifying": ("Not ready: checking the output", "work", "Nothing: this takes seconds."),
    "suspended": (
        "Traffic is withheld",
        "bad",
        "What the sentence above says. Whatever ends the suspension, the engine is warmed and checked again before "
        "traffic comes; the last events and the engine container's log say more.",
    ),
    "draining": (
        "Draining",
        "calm",
        "Nothing, if it was meant: no new traffic comes, and requests in flight may end. "
        "`warmup-sidecar rewarm` takes it back.",
    ),
    "stopped": ("Stopped", "calm", "Nothing: the sidecar has ended."),
}


def pace(status: Mapping[str, Any]) -> int:
    """Give the seconds after which the page reloads itself when nobody asked for another pace."""
    return QUIET_S if status.get("ready") else BUSY_S


def render(status: Mapping[str, Any], *, now: float, refresh: int) -> str:
    """Give the whole document. `status` as `/status` gives it, `now` in seconds since the epoch,
    `refresh` in seconds (0: never).
    """
    headline, tone, advice = _verdict(status)
    engine = parts.section(status, "engine")
    title = f"{headline} · {engine['model']}" if engine.get("model") else headline
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", http_equiv="refresh", content=refresh) if refresh else None,
        element("title", title),
        _icon(tone),
        element("style", raw(STYLE)),
    )
    body = element(
        "body",
        element("a", "Skip to the verdict", href="#verdict", class_="skip"),
        _header(status, now, refresh),
        element(
            "main",
            _hero(status, headline, tone, advice, now),
            panels.notices(parts.listed(status, "degraded")),
            _tiles(status),
            _columns(status),
        ),
        _footer(status),
    )
    return "<!doctype html>\n" + element("html", head, body, lang="en")


def _columns(status: Mapping[str, Any]) -> Element:
    work = (
        _timeline(status),
        warmup_panels.warmup(status),
        coverage_panel.coverage(status),
        warmup_panels.kernels(status),
        panels.events(status),
    )
    is_wrong = words.tone(parts.section(status, "golden").get("outcome")) == "bad"
    things = [
        (panels.restore(status), False),
        (history_panel.history(status), False),
        (panels.engine(status), False),
        (gpu_panel.gpu(status), bool(gpu_panel.lost_of(status))),
        (golden_panel.golden(status), is_wrong),
        (panels.publish(status), False),
    ]
    # What took traffic away is not looked for below what is well.
    things.sort(key=lambda each: not each[1])
    cards = [card for card, _ in things]
    return element("div", element("div", *work, class_="stack"), element("div", *cards, class_="stack"), class_="cols")


def _verdict(status: Mapping[str, Any]) -> tuple[str, str, str]:
    if not status.get("ready"):
        return VERDICTS.get(str(status.get("phase")), ("Not ready", "calm", "Nothing is known about this phase."))
    _, late = warmup_panels.kernel_sums(status)
    if late:
        return (
            "Ready, but compiling under traffic",
            "care",
            f"Nothing at once. Kernels compiled after ready: {late}, each a stall for somebody's request. "
            "The next start has them "
            "from the store once they are published; if it goes on, add the shapes of your traffic to "
            "the warm-up profile.",
        )
    fallback = parts.section(parts.section(status, "engine"), "fallback")
    if status.get("flagged") and fallback.get("change"):
        return (
            "Ready, with a fallback",
            "care",
            "Nothing at once: its output is good as it runs now. Mend what made it bad without the fallback, then run "
            "`warmup-sidecar golden lift` and replace the pod.",
        )
    if status.get("flagged"):
        return (
            "Ready, without proof",
            "care",
            "Serving by policy. See the warm-up and the output check below; `warmup-sidecar rewarm` tries both again.",
        )
    return "Ready", "good", "Nothing: the engine is warm, its output was checked, and traffic may come."


def _icon(tone: str) -> Element:
    colour = {"good": "1d9a58", "work": "2f6fe0", "care": "d98a1e", "bad": "d1434a"}.get(tone, "6b7484")
    picture = (
        "%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E"
        f"%3Ccircle cx='8' cy='8' r='7' fill='%23{colour}'/%3E%3C/svg%3E"
    )
    return element("link", rel="icon", href="data:image/svg+xml," + picture)


def _header(status: Mapping[str, Any], now: float, refresh: int) -> Element:
    engine = parts.section(status, "engine")
    names = [words.plain(engine.get("kind", "")), str(engine.get("version") or "")]
    who = together(
        element("strong", engine.get("model") or "warmup-sidecar"),
        " ",
        " ".join(name for name in names if name),
    )
    again = (
        together(
            f"as of {words.moment(now)} UTC, reloads every {refresh} s · ",
            element("a", "stop that", href="?refresh=0"),
        )
        if refresh
        else together(f"as of {words.moment(now)} UTC, does not reload · ", element("a", "reload itself", href="/"))
    )
    return element("header", element("span", who), element("span", again))


def _hero(status: Mapping[str, Any], headline: str, tone: str, advice: str, now: float) -> Element:
    since = words.number(status.get("since"))
    held = (
        f"{words.plain(status.get('phase', ''))} for {words.seconds(max(now - since, 0))}, since "
        f"{words.moment(since)} UTC"
        if since
        else None
    )
    return element(
        "section",
        element("h1", headline, id="title"),
        element("p", status.get("reason") or "No reason was given.", class_="why"),
        _progress(status),
        element("p", element("b", "What to do: "), advice, class_="next"),
        element("p", "Phase ", held, class_="since") if held else None,
        class_=f"hero {tone}",
        id="verdict",
        role="status",
        aria_labelledby="title",
    )


def _progress(status: Mapping[str, Any]) -> Element | None:
    if status.get("phase") == "restoring":
        restore = parts.section(status, "restore")
        done, whole = words.number(restore.get("bytes_done")), words.number(restore.get("bytes"))
        if done is None or not whole:
            return None
        label = f"{words.size(done)} of {words.size(whole)} restored"
    elif status.get("phase") == "warming":
        steps = warmup_panels.steps_of(status)
        done, whole = (
            float(sum(1 for step in steps if step.get("state") not in ("pending", "running"))),
            float(len(steps)),
        )
        if not whole:
            return None
        current = parts.section(status, "warmup").get("round")
        label = f"{done:.0f} of {whole:.0f} steps" + (f" in round {current}" if current else "")
    else:
        return None
    return element(
        "div",
        figures.meter(done / whole, label),
        element("p", element("span", label), class_="small"),
        class_="meter",
    )


def _tiles(status: Mapping[str, Any]) -> Element:
    way = journey.latest(parts.mappings(status, "timeline"))
    restore = parts.section(status, "restore")
    before, after = warmup_panels.kernel_sums(status)
    outcome = str(restore.get("outcome", "pending"))
    laid = (
        f"{words.count(restore.get('files'))} files, {words.size(restore.get('bytes'))}"
        if restore.get("files")
        else "nothing laid down"
    )
    return element(
        "dl",
        _tile(way.title, words.seconds(way.seconds), way.said, "calm"),
        _tile("Restore", words.plain(outcome), laid, words.tone(outcome)),
        _tile(
            "Kernels before ready",
            words.count(before),
            "no request waited for these" if before else "nothing was compiled",
            "calm",
        ),
        _late_tile(after, way, bool(status.get("ready"))),
        _kv_cache_tile(parts.section(status, "engine")),
        class_="tiles",
        aria_label="At a glance",
    )


def _late_tile(after: int, way: journey.Journey, ready: bool) -> Element:
    name, value = "Kernels after ready", words.count(after)
    if after:
        return _tile(name, value, "each one stalls a request", "bad")
    if ready:
        return _tile(name, value, "as it should be", "good")
    return _tile(name, value, "none while it served" if way.earlier or way.after else way.said, "calm")


def _kv_cache_tile(engine: Mapping[str, Any]) -> Element:
    usage = words.number(engine.get("kv_cache_usage"))
    if usage is None:
        absent = "the engine does not show it" if engine.get("state") == "up" else "no engine answers"
        return _tile("KV cache in use", words.percent(usage), absent, "calm")
    queue = f"{words.count(engine.get('running'))} running, {words.count(engine.get('waiting'))} waiting"
    return _tile("KV cache in use", words.percent(usage), queue, "care" if usage > 0.9 else "calm")


def _tile(name: str, value: str, more: str, tone: str) -> Element:
    return element(
        "div",
        element("dt", name),
        element("dd", value, class_="big"),
        element("dd", more, class_="more"),
        class_=tone,
    )


def _timeline(status: Mapping[str, Any]) -> Element:
    way = journey.latest(parts.mappings(status, "timeline"))
    shares = [
        (f"p-{journey.known(s.phase)}", s.seconds, f"{words.plain(s.phase)}: {words.seconds(s.seconds)}")
        for s in way.stays
    ]
    rows = []
    for stay in [*way.stays, *way.after]:
        now = not stay.ended
        rows.append(
            element(
                "li",
                figures.swatch(f"p-{journey.known(stay.phase)}"),
                element(
                    "span",
                    words.plain(stay.phase),
                    element("span", " (now)", class_="soft") if now else None,
                    class_="name now" if now else "name",
                ),
                element("span", words.seconds(stay.seconds), class_="n"),
                element("time", words.moment(stay.since), class_="n soft small"),
            )
        )
    spoken = "Time spent per phase: " + ", ".join(title for _, _, title in shares)
    return parts.card(
        "Timeline",
        "timeline",
        figures.stacked(shares, spoken) if shares else None,
        element("ol", rows, class_="legend"),
        panels.earlier(way.earlier),
        tag=element("span", way.said, class_="soft small"),
    )


def _footer(status: Mapping[str, Any]) -> Element:
    links = [
        element("a", path, href=path) for path in ("/status", "/metrics", "/readyz?verbose", "/startupz", "/livez")
    ]
    startup = parts.section(status, "startup")
    return element(
        "footer",
        element("span", f"warmup-sidecar {status.get('version', '')}, mode {status.get('mode', '')}"),
        *links,
        element(
            "span",
            "Engine's container may start: ",
            "yes" if startup.get("open") else "not yet",
            f" ({startup.get('sentence', '')})",
        ),
    )
