"""The reference tables of the README, each made from the declaration of what it lists.

No table is written by hand, and no file is touched here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sidecar import config, errors
from sidecar.commands.settings_flags import default_text, flag, is_switch, words_of
from sidecar.lifecycle import Phase
from sidecar.status import SECTIONS

Rows = Sequence[Sequence[str]]

#: What each phase means, for people; the order and the names are those of the state machine.
PHASES: Mapping[Phase, str] = {
    Phase.STARTING: "The sidecar looks at what is there.",
    Phase.AWAITING_LAUNCHER: "Waits for the engine's container to hand over its facts.",
    Phase.RESTORING: "Lays kernel caches down; the engine has not started yet.",
    Phase.AWAITING_ENGINE: "The engine starts, or has gone.",
    Phase.WARMING: "Warm-up traffic runs.",
    Phase.VERIFYING: "The output is checked.",
    Phase.READY: "Traffic may come. The only phase in which `/readyz` answers 200.",
    Phase.SUSPENDED: "Held back: asleep, stalled, degenerate, broken, or not warmed by policy.",
    Phase.DRAINING: "No new traffic; requests in flight may end.",
    Phase.STOPPED: "The sidecar ends.",
}

EXIT_CODES: tuple[tuple[int, str], ...] = (
    (errors.EXIT_OK, "Done; also after SIGTERM."),
    (errors.EXIT_USAGE, "Wrong use, settings or profile. `run` does not end with it: it comes up degraded."),
    (
        errors.EXIT_NOT_SO,
        "What was asked for does not hold: not ready, not reachable, tables differ, demo failed.",
    ),
    (errors.EXIT_BUG, "A bug of ours."),
    (130, "Interrupted from the keyboard."),
)


@dataclass(frozen=True)
class Reference:
    """One generated table: its name in the README's markers, its headings, and where its rows come from."""

    name: str
    headings: tuple[str, ...]
    rows: Callable[[], Rows]


def markdown(reference: Reference) -> str:
    """Give the table as Markdown, with its last newline."""
    lines = [_line(reference.headings), _line(["---"] * len(reference.headings))]
    lines += [_line(row) for row in reference.rows()]
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(" ".join(str(cell).split()).replace("|", "\\|") for cell in cells) + " |"


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _codes(listed: str) -> str:
    return ", ".join(map(_code, listed.split(", ")))


def _settings() -> Rows:
    rows = []
    for name, info in config.Settings.model_fields.items():
        words = " or ".join(_code(word) for word in words_of(name))
        meaning = (info.description or "") + (f" One of {words}." if words else "")
        rows.append(
            (
                _code(config.variable(name)),
                _code(flag(name) + (f" / --no-{flag(name)[2:]}" if is_switch(name) else "")),
                _code(default_text(name)) or "empty",
                meaning,
            )
        )
    return rows


def _commands() -> Rows:
    # The command line is above this room, and knows its commands better than a copy here would.
    import click

    root = click.get_current_context().find_root()
    group = root.command
    assert isinstance(group, click.Group), "docs runs below the command line's group"
    found = [(name, group.get_command(root, name)) for name in group.list_commands(root)]
    return [(_code(name), command.get_short_help_str(200)) for name, command in found if command]


def _metrics() -> Rows:
    from sidecar import metrics

    rows = [(_code(name), *rest) for name, *rest in metrics.documented()]
    most = sum(int(row[_METRIC_HEADINGS.index("series at most")]) for row in rows)
    return [*rows, ("all together", "", "", "", str(most), "One sidecar with 16 GPUs and every family shows no more.")]


def _injector_metrics() -> Rows:
    from sidecar import metrics
    from sidecar.metrics.injector import INJECTOR_TABLE

    return [(_code(name), *rest) for name, *rest in metrics.documented(INJECTOR_TABLE)]


def _endpoints() -> Rows:
    from sidecar.web import app

    return [(_code(path), *rest) for path, *rest in app.documented()]


def _calls() -> Rows:
    from sidecar.web import control

    return [(method, _code(path), meaning) for method, path, meaning in control.documented()]


def _errors() -> Rows:
    return [
        (
            _code(each.outcome),
            " ".join((each.__doc__ or "").split("\n\n")[0].split()),
            str(each.exit_code),
            "yes" if each.retry else "no",
        )
        for each in errors.every_error()[1:]
    ]


#: What is looked at before an entry of a family is published or restored, besides digests; see `caches/validity.py`.
CHECKS: Mapping[str, str] = {
    "none": "",
    "triton": "JSON parses, a group's children are there",
    "cubin": "has its cubin",
    "ninja": "ninja finished it, JSON parses",
    "json": "JSON parses",
}


def _families() -> Rows:
    from sidecar.caches.families import FAMILIES, NO_FAMILY

    rows = [
        (
            family.name,
            _codes(family.default_path),
            _code(family.directory),
            ", ".join([*map(_code, family.variables), *(f"a link at {_code(place)}" for place in family.links)]),
            family.scope,
            ", ".join(
                [
                    *map(_code, family.leave_out),
                    *(f"{_code(one)} (several ranks)" for one in family.leave_out_multi_rank),
                ]
            ),
            CHECKS[family.validity],
            family.since,
            family.note,
        )
        for family in FAMILIES
    ]
    return [
        *rows,
        *((one.name, _codes(one.default_path), "", "", "no family", "", "", "", one.why) for one in NO_FAMILY),
    ]


def _facts() -> Rows:
    from sidecar.caches.fingerprint import FACTS

    return [
        (
            fact.name,
            _code(fact.where),
            " and ".join(fact.scopes) or "no key",
            fact.stored,
            fact.why,
        )
        for fact in FACTS
    ]


def _profiles() -> Rows:
    from sidecar.warmup.profiles import list_profiles

    return [
        (
            _code(each.name),
            "others to extend" if each.profile.only_extended else ", ".join(each.profile.match.sm) or "any",
            str(len(each.profile.steps)),
            each.profile.description,
        )
        for each in list_profiles()
        if each.profile
    ]


def _engines() -> Rows:
    from sidecar.engines.adapters import engines
    from sidecar.engines.declaration import ABILITIES

    rows = [("versions", *(each.versions for each in engines().values()))]
    return rows + [
        (meaning, *(str(each.claims[name]) for each in engines().values())) for name, meaning in ABILITIES.items()
    ]


def _engine_titles() -> tuple[str, ...]:
    from sidecar.engines.adapters import engines

    return tuple(f"{each.title} (`{each.name}`)" for each in engines().values())


def _engine_endpoints() -> Rows:
    from sidecar.engines.adapters import engines

    return [
        (each.title, _code(one.path), "yes" if one.key else "no", one.use)
        for each in engines().values()
        for one in each.endpoints
    ]


def _kubernetes_rights() -> Rows:
    from sidecar.kube import rights

    return [
        (name, _code(config.variable(setting) + "=true"), does, needed)
        for name, setting, does, needed in rights.documented()
    ]


def _condition_reasons() -> Rows:
    from sidecar.kube import condition

    return [(_code(reason), when) for reason, when in condition.documented()]


def _kubernetes_events() -> Rows:
    from sidecar.kube import events

    return [(_code(reason), kind, meaning) for reason, kind, meaning in events.documented()]


_METRIC_HEADINGS = ("metric", "type", "labels", "unit", "series at most", "meaning")

REFERENCES: tuple[Reference, ...] = (
    Reference("commands", ("command", "meaning"), _commands),
    Reference("exit codes", ("code", "meaning"), lambda: [(str(code), meaning) for code, meaning in EXIT_CODES]),
    Reference("settings", ("variable", "flag", "default", "meaning"), _settings),
    Reference("endpoints", ("path", "methods", "codes", "meaning"), _endpoints),
    Reference("control calls", ("method", "path", "meaning"), _calls),
    Reference(
        "status keys",
        ("key", "meaning"),
        lambda: [(_code(key), meaning) for key, meaning in SECTIONS.items()],
    ),
    Reference("phases", ("phase", "meaning"), lambda: [(_code(phase.value), PHASES[phase]) for phase in Phase]),
    Reference("metrics", _METRIC_HEADINGS, _metrics),
    Reference("injector metrics", _METRIC_HEADINGS, _injector_metrics),
    Reference(
        "families",
        ("family", "usual place", "directory", "moved by", "scope", "left out", "checked", "since vLLM", "note"),
        _families,
    ),
    Reference("facts", ("fact", "from", "enters the key of", "stored as", "why it matters"), _facts),
    Reference("profiles", ("profile", "for", "steps", "description"), _profiles),
    Reference("engines", ("what", *_engine_titles()), _engines),
    Reference("engine endpoints", ("engine", "path", "key sent", "what for"), _engine_endpoints),
    Reference("kubernetes rights", ("feature", "setting", "what it does", "rights"), _kubernetes_rights),
    Reference("condition reasons", ("reason", "when"), _condition_reasons),
    Reference("kubernetes events", ("reason", "type", "meaning"), _kubernetes_events),
    Reference("errors", ("outcome", "meaning", "exit code", "another try may help"), _errors),
)

BY_NAME: Mapping[str, Reference] = {reference.name: reference for reference in REFERENCES}
