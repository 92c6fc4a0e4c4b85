"""The order of a start: facts, decision, swap, engine, end; again when the sidecar asks for it.

Every step is done elsewhere; here is what follows what, and that the engine starts whatever goes wrong.
"""

from __future__ import annotations

import os
import signal
import sys
import time

from sidecar.launcher.attempts import Attempt, Json, dead_attempts, is_held, prune, read_json
from sidecar.launcher.change import Unchangeable, changed_command, changed_environment
from sidecar.launcher.ending import Ending
from sidecar.launcher.environment import appended, engine_environment, writable_home
from sidecar.launcher.facts import collect_facts, fallback_facts
from sidecar.launcher.links import Links
from sidecar.launcher.locks import remove_orphans
from sidecar.launcher.log import say
from sidecar.launcher.memory import oom_kills
from sidecar.launcher.messages import best_effort, checked_decision, checked_settings, durations
from sidecar.launcher.output import Listener
from sidecar.launcher.privacy import secret_values, without_secrets
from sidecar.launcher.process import MARK, POLL_S, WATCH_S, Engine, Signals, die_with_parent, end_left_overs
from sidecar.launcher.swap import LiveCaches
from sidecar.launcher.unmanaged import Places, Watch


class Launch:
    """One launcher: attempts until an engine has ended that nobody wants started again."""

    def __init__(self, control: str, argv: list[str]) -> None:
        self._control, self._argv = control, argv
        self._environment = dict(os.environ)
        self._signals = Signals()
        self.engine: Engine | None = None
        self._links: Links | None = None
        self._looking: Watch | None = None

    def run(self) -> int | None:
        """Start the engine, stay until it ended, give the exit code. None: it must be started directly."""
        settings = self._settings()
        if settings is None:
            return 128 + self._signals.stopping if self._signals.stopping else None
        before: Attempt | None = None
        while True:
            attempt = Attempt(self._control)
            if before:
                # Only now: at no moment nobody is there.
                before.close()
            code = self._one(attempt, settings)
            if code is not None:
                return code
            before, settings = attempt, self._latest(settings)

    def _settings(self) -> Json | None:
        """Read sidecar.json, with a little patience; None when there is nobody to wait for."""
        grace_s = durations({})["grace_s"]
        deadline = time.monotonic() + grace_s
        if not os.access(self._control, os.W_OK | os.X_OK):
            say(f"{self._control} can't be written; the engine starts without the sidecar.")
            return None
        while not self._signals.stopping:
            settings = checked_settings(read_json(os.path.join(self._control, "sidecar.json")))
            if settings is not None:
                return settings
            if time.monotonic() >= deadline:
                say(f"no sidecar came to {self._control} within {grace_s:.0f} s; the engine starts alone.")
                return None
            self._signals.pause(POLL_S)
        return None

    def _latest(self, settings: Json) -> Json:
        """Read sidecar.json again: the sidecar may have been started anew."""
        return checked_settings(read_json(os.path.join(self._control, "sidecar.json"))) or settings

    def _one(self, attempt: Attempt, settings: Json) -> int | None:
        """Go through one attempt; give the exit code, or None when another attempt is to follow."""
        os.umask(settings["umask"])
        hidden = secret_values(self._argv, self._environment)
        listener = Listener(os.path.join(attempt.path, "lines.jsonl"), hidden)
        attempt.write("facts.json", self._facts(attempt, settings))
        decision = self._decision(attempt, settings)
        settings = self._latest(settings)
        if decision is None:
            return self._close(attempt, 0.0, (None, self._signals.stopping), [], False)
        # Nothing is renamed in a live cache while an engine that uses it lives.
        end_left_overs(dead_attempts(self._control))
        caches = LiveCaches(settings["live_cache"], attempt.name)
        caches.obey(decision)
        remove_orphans(settings["live_cache"])
        asked, given = self._changed(decision, caches)
        environment = engine_environment(given, settings, decision, caches, listener)
        environment[MARK] = attempt.name
        argv = appended(asked, decision["append"], caches)
        self._prepare_places(attempt, settings, environment)
        if self._signals.stopping:
            return self._close(attempt, 0.0, (None, self._signals.stopping), [], False)
        try:
            self.engine = Engine(argv, environment, listener, self._signals)
        except OSError as error:
            say(f"the engine's command can't be executed: {error}.")
            code = 126 if isinstance(error, PermissionError) else 127
            return self._close(attempt, 0.0, (code, None), [f"{argv[0]}: {error}"], False)
        swapped = {"committed": caches.committed, "failed": caches.failed}
        started = {"pid": self.engine.pid, "by": decision["by"], "engine_argv": without_secrets(argv)[0]}
        best_effort(attempt.write, "started.json", {**started, **swapped})
        prune(self._control)
        return self._watch(attempt, settings, listener)

    def _changed(self, decision: Json, caches: LiveCaches) -> tuple[list[str], dict[str, str]]:
        """Give command and environment with the fallback that was decided on; one that can't be applied is reported."""
        change = decision["change"]
        if change is None:
            return self._argv, self._environment
        try:
            argv = changed_command(self._argv, change)
        except Unchangeable as problem:
            caches.failed["fallback"] = str(problem)
            say(f"the fallback {change['text']} can't be applied ({problem}); the engine starts as it was asked to.")
            return self._argv, self._environment
        say(f"the engine starts with the fallback {change['text']}.")
        return argv, changed_environment(self._environment, change)

    def _prepare_places(self, attempt: Attempt, settings: Json, environment: dict[str, str]) -> None:
        """Link what no variable moves, and begin to watch the places where unknown caches would grow."""
        try:
            if settings["live_cache"]:
                self._links = Links(settings["links"], environment, settings["live_cache"])
                self._links.make()
            places = Places(settings, environment, self._control)
            self._looking = Watch(attempt, places, durations(settings)["look_s"])
            self._looking.look_before()
        except Exception as error:  # the engine has its caches; it must not lose them over this
            say(f"{type(error).__name__} ({error}); what no variable moves stays where it is.")

    def _facts(self, attempt: Attempt, settings: Json) -> Json:
        try:
            caches = LiveCaches(settings["live_cache"], attempt.name)
            moved = writable_home(self._environment, settings["live_cache"], caches)
            # What the engine will see: keys hold paths below its HOME.
            seen = {**self._environment, **moved}
            facts = collect_facts(self._argv, seen, settings["environment"])
            if moved:
                facts["home_before"] = self._environment.get("HOME", "")
            if settings["fallbacks"]:
                facts["fallbacks"] = fallback_facts(self._argv, seen, settings["environment"], settings["fallbacks"])
        except Exception as error:  # a fact must not keep the engine from its caches, let alone from starting
            facts = {"error": f"{type(error).__name__}: {error}"}
        return {"attempt": attempt.name, **facts}

    def _decision(self, attempt: Attempt, settings: Json) -> Json | None:
        """Wait for the sidecar's decision, or decide; whoever was first is obeyed. None: asked to end."""
        limits = durations(settings)
        began = alone_since = time.monotonic()
        while not self._signals.stopping:
            decision = attempt.read("decision.json")
            if decision is not None:
                return checked_decision(decision)
            now, why = time.monotonic(), ""
            if is_held(os.path.join(self._control, "sidecar.lock")) is not False:
                alone_since = now
            if now - began >= limits["wait_s"]:
                why = f"no decision within {limits['wait_s']:.0f} s"
            elif now - alone_since >= limits["alone_s"]:
                why = f"the sidecar has been gone for {limits['alone_s']:.0f} s"
            if why:
                say(f"{why}; the engine starts with the caches as they are.")
                if attempt.create("decision.json", {"by": "launcher", "why": why}):
                    return checked_decision({"by": "launcher"})
                return checked_decision(attempt.read("decision.json") or {"by": "launcher"})
            self._signals.pause(POLL_S)
        return None

    def _watch(self, attempt: Attempt, settings: Json, listener: Listener) -> int | None:
        engine = self.engine
        assert engine is not None
        killed_before = oom_kills()
        ending = Ending(engine, attempt, durations(settings), settings["engine_url"] + "/metrics")
        while not engine.reap():
            ending.tick(self._signals)
            self._signals.pause(WATCH_S)
        lived, ended = engine.seconds, engine.finish()
        self.engine = None
        again = ending.restart_asked and not self._signals.stopping
        killed = max(0, oom_kills() - killed_before)
        return self._close(attempt, lived, ended, listener.last_lines(), again, killed)

    def _close(
        self,
        attempt: Attempt,
        seconds: float,
        ended: tuple[int | None, int | None],
        lines: list[str],
        again: bool,
        killed: int = 0,
    ) -> int | None:
        """Record how it ended; give the exit code, or None when another attempt is to follow."""
        if self._looking:
            self._looking.end()
        if self._links:
            self._links.remove()
        code, number = ended
        record = {"code": code, "signal": number, "seconds": round(seconds, 3), "restarting": again}
        best_effort(attempt.write, "exited.json", {**record, "oom_kills": killed, "last_lines": lines})
        if again:
            return None
        return code if code is not None else 128 + (number or 0)


def start_directly(argv: list[str], environment: dict[str, str], umask: int) -> None:
    """Become the engine, as if there were no launcher."""
    os.umask(umask)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        # Python ignores them, and what is ignored stays so in the engine.
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(argv[0], argv, environment)
    except OSError as error:
        say(f"the engine's command can't be executed: {argv[0]}: {error}.")
        sys.exit(126 if isinstance(error, PermissionError) else 127)


def main(words: list[str]) -> int:
    """Take the command line apart and launch."""
    control = os.environ.get("WARMUP_CONTROL_DIR") or os.path.dirname(os.path.abspath(sys.argv[0]))
    if words[:1] == ["--control"] and len(words) > 1:
        control, words = words[1], words[2:]
    if words[:1] == ["--die-with-parent"]:
        # As the daemon's own child: an engine must not outlive the daemon that was killed.
        die_with_parent()
        words = words[1:]
    if words[:1] != ["--"] or len(words) < 2:
        say("usage: launcher.py [--control DIRECTORY] -- COMMAND [ARGUMENT ...]")
        return 2
    argv, environment = words[1:], dict(os.environ)
    umask = os.umask(0o007)
    launch = None
    try:
        launch = Launch(os.path.abspath(control), argv)
        code = launch.run()
        if code is not None:
            return code
    except Exception as error:  # whatever it is, it must not keep the engine from running
        if launch is not None and launch.engine is not None:
            say(f"{type(error).__name__} ({error}); the engine goes on without the sidecar.")
            return launch.engine.wait()
        say(f"{type(error).__name__} ({error}); the engine starts without the sidecar.")
    start_directly(argv, environment, umask)
    return 1
