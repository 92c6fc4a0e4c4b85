"""The cards of the status page, one function each: restore, engine, publish, events.

Each reads its section of `/status` and copes with whatever is missing or odd in it. The cards about compiling
are in `warmup_panels.py`, the one about the output in `golden_panel.py`, about GPUs in `gpu_panel.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sidecar.engines.server_facts import SMALLEST
from sidecar.web import parts, words
from sidecar.web.journey import Stay
from sidecar.web.markup import Element, element

#: Events on the page; `/status` has more, the log all of them.
EVENTS_SHOWN = 30
_MARKS = {"error": "✕", "warning": "!"}


def notices(degraded: Sequence[object]) -> Element | None:
    """Show what is switched off and why."""
    if not degraded:
        return None
    return element(
        "section",
        element("h2", "Degraded", id="degraded-title"),
        element("ul", [element("li", notice) for notice in degraded]),
        class_="notices",
        aria_labelledby="degraded-title",
    )


def restore(status: Mapping[str, Any]) -> Element:
    """Show what was laid down before the engine started."""
    found = parts.section(status, "restore")
    took, size = words.number(found.get("seconds")), words.number(found.get("bytes"))
    done = words.number(found.get("bytes_done")) or size
    speed = f" ({words.size(done / took)}/s)" if done and took else ""
    rejected = found.get("rejected") if isinstance(found.get("rejected"), Mapping) else {}
    return parts.card(
        "Restore",
        "restore",
        parts.said(found),
        parts.facts(
            [
                ("Generation", parts.short(found.get("generation")), None),
                ("Files", words.count(found.get("files")) if found.get("files") else None, None),
                ("Size", words.size(size) if size else None, None),
                ("Took", words.seconds(took) + speed if took is not None else None, None),
                ("Exact key", parts.short(found.get("exact_key")), None),
                ("Toolchain key", parts.short(found.get("toolchain_key")), None),
                ("Nearest known key differs in", parts.value(found.get("differs")), None),
                *(
                    (
                        f"Refused: {words.plain(reason)}",
                        element("span", words.count(n), " files", class_="alarm"),
                        None,
                    )
                    for reason, n in (rejected or {}).items()
                ),
                *_little_used(parts.section(found, "effectiveness")),
                *_unmanaged(parts.section(status, "cache").get("unmanaged")),
            ]
        ),
        _families(found.get("families"), parts.section(found, "effectiveness")),
        tag=parts.tag(found.get("outcome", "pending")),
    )


def _little_used(effects: Mapping[str, Any]) -> list[tuple[str, object, object]]:
    """Say of each restored family that was of little use what explains it."""
    return [
        (f"Little used: {name}", found["why"], None)
        for name, found in effects.items()
        if isinstance(found, Mapping) and found.get("why")
    ]


def _unmanaged(found: object) -> list[tuple[str, object, object]]:
    """Name the directories that grew and are in no family."""
    return [
        ("In no family", element("code", one.get("path")), f"{words.size(one.get('bytes'))}, {one.get('files')} files")
        for one in (found if isinstance(found, list) else [])
        if isinstance(one, Mapping)
    ]


def _families(families: object, effects: Mapping[str, Any]) -> Element | None:
    if not isinstance(families, Mapping) or not families:
        return None
    rows = [
        element(
            "tr",
            element("th", name, scope="row"),
            element("td", words.count(found.get("files")), class_="n"),
            element("td", words.size(found.get("bytes")), class_="n"),
            element("td", words.percent(words.number(parts.section(effects, str(name)).get("ratio"))), class_="n"),
        )
        for name, found in families.items()
        if isinstance(found, Mapping)
    ]
    heads = [("Family", ""), ("Files", "n"), ("Size", "n"), ("Used", "n")]
    return parts.table(heads, rows, "Restored files by family, and the share the engine used")


def engine(status: Mapping[str, Any]) -> Element:
    """Show what is known of the engine, each fact with where it came from."""
    found = parts.section(status, "engine")
    limits, sources = parts.section(found, "limits"), parts.section(found, "sources")
    rows: list[tuple[str, object, object]] = [
        ("Detail", found.get("detail"), None),
        ("Address", found.get("url"), None),
        (
            "Kind",
            " ".join(str(found[key]) for key in ("kind", "version") if found.get(key)),
            sources.get("version"),
        ),
        ("Model", found.get("model"), sources.get("model")),
        *(
            (
                words.plain(name).capitalize().replace("Kv ", "KV "),
                untold(value, sources.get(name)) or parts.value(value),
                _told_by(sources.get(name)),
            )
            for name, value in limits.items()
        ),
        ("Fallback", parts.section(found, "fallback").get("change"), None),
        ("KV cache", parts.section(found, "kv_cache").get("sentence"), parts.section(found, "kv_cache").get("restart")),
        ("Answered after", words.seconds(found.get("healthy_after_s")), None),
        ("Restarts", words.count(found.get("restarts")), None),
        ("Last exit", _exit(found.get("last_exit")), None),
        ("Attempt", element("code", found["attempt"]) if found.get("attempt") else None, None),
    ]
    usage = words.number(found.get("kv_cache_usage"))
    gauge = None
    if usage is not None:
        gauge = parts.gauge("KV cache", usage, f"{words.percent(usage)}")
    return parts.card("Engine", "engine", gauge, parts.facts(rows), tag=parts.tag(found.get("state", "unknown")))


def untold(value: object, source: object) -> str:
    """Say of a limit that nobody told it, so that a default isn't taken for the engine's; empty where it is known."""
    return f"not told; vLLM's smallest default is {parts.value(value)}" if source == SMALLEST else ""


def _told_by(source: object) -> object:
    return None if source == SMALLEST else source


def _exit(found: object) -> object:
    if not isinstance(found, Mapping):
        return parts.value(found)
    if found.get("sentence"):
        return found["sentence"]
    how = f"killed by signal {found['signal']}" if found.get("signal") else f"code {found.get('code')}"
    rest = {key: value for key, value in found.items() if key not in ("signal", "code", "seconds", "last_lines")}
    after = f" after {words.seconds(found['seconds'])}" if found.get("seconds") is not None else ""
    return how + after + (f"; {parts.value(rest)}" if parts.value(rest) else "")


def publish(status: Mapping[str, Any]) -> Element:
    """Show what this pod gave to the next one."""
    found = parts.section(status, "publish")
    return parts.card(
        "Publish",
        "publish",
        parts.said(found),
        parts.facts(
            [
                ("Generation", parts.short(found.get("generation")), None),
                ("Parent", parts.short(found.get("parent")), None),
                ("Files", words.count(found.get("files")), None),
                ("New files", words.count(found.get("new_files")), None),
                ("Packed", words.size(found.get("bytes")), None),
                ("Took", words.seconds(found.get("seconds")), None),
                ("Publishes", words.count(found.get("count")), None),
            ]
        ),
        tag=parts.tag(found.get("outcome", "pending")),
    )


def events(status: Mapping[str, Any]) -> Element:
    """Show the last events, newest first."""
    found = parts.mappings(status, "events")[::-1][:EVENTS_SHOWN]
    rows = []
    for event in found:
        level = event.get("level", "info")
        mark = _MARKS.get(str(level), "·")
        rows.append(
            element(
                "li",
                element("time", words.moment(event.get("at"))),
                element(
                    "span",
                    element("span", mark, aria_hidden="true"),
                    element("span", level, class_="hidden"),
                    class_="mark",
                ),
                element("span", event.get("text", ""), class_="said"),
                class_=words.tone(level),
            )
        )
    shown = element("ol", rows) if rows else element("p", "Nothing has happened yet.", class_="soft")
    return parts.card("Events", "events", shown, tag=element("span", "newest first, UTC", class_="soft small"))


def earlier(stays: Sequence[Stay]) -> Element | None:
    """Show the phases before the latest journey, folded away."""
    if not stays:
        return None
    rows = [
        element(
            "tr",
            element("td", words.moment(stay.since)),
            element("th", words.plain(stay.phase), scope="row"),
            element("td", words.seconds(stay.seconds), class_="n"),
        )
        for stay in reversed(stays)
    ]
    return element(
        "details",
        element("summary", f"{len(stays)} earlier phases"),
        parts.table([("Since", ""), ("Phase", ""), ("Took", "n")], rows, "Earlier phases"),
    )
