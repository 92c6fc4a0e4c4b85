"""How a running engine is brought to its end: a held SIGTERM while requests are in flight, SIGKILL at last.

What happens after it has ended is not decided here.
"""

from __future__ import annotations

import re
import signal
import threading
import time

from sidecar.launcher.attempts import Attempt
from sidecar.launcher.log import say
from sidecar.launcher.messages import best_effort
from sidecar.launcher.process import Engine, Signals

NOT_SERVING = -1.0
#: An engine that hangs may let its address be looked up, or its answer trickle, for ever. Seconds.
ANSWER_S = 2.0
#: Requests running and waiting: vLLM 0.8 to 0.33, SGLang 0.5, TensorRT-LLM 1.x.
IN_FLIGHT = re.compile(
    r"^(?:vllm:num_requests_(?:running|waiting)|sglang:num_(?:running|queue)_reqs|trtllm_num_requests_(?:running|waiting))"
    r"(?:\{.*\})?\s+([0-9.eE+]+)",
    re.MULTILINE,
)


class Ending:
    """The end of one engine: SIGTERM waits for requests in flight, SIGKILL for an engine that stays."""

    def __init__(self, engine: Engine, attempt: Attempt, seconds: dict[str, float], metrics_url: str) -> None:
        self._engine, self._attempt, self._seconds, self._url = engine, attempt, seconds, metrics_url
        self._held_since: float | None = None
        self._sent_at: float | None = None
        self._idle_looks = 0
        self._asking: threading.Thread | None = None
        self.restart_asked = False

    def tick(self, signals: Signals) -> None:
        """Do what is due now."""
        now = time.monotonic()
        if self._sent_at is not None:
            if now - self._sent_at >= self._seconds["kill_s"]:
                say(f"the engine did not end {self._seconds['kill_s']:.0f} s after SIGTERM and is killed.")
                self._engine.kill()
        elif signals.terms:
            self._hold(now, signals)
        elif self._attempt.has("restart.json"):
            self.restart_asked = True
            self._send(now, signals)

    def _hold(self, now: float, signals: Signals) -> None:
        if self._held_since is None:
            self._held_since = now
            best_effort(self._attempt.write, "terminating.json", {"drain_s": self._seconds["drain_s"]})
        over = now - self._held_since >= self._seconds["drain_s"]
        if signals.terms > 1 or over or self._is_idle(now - self._held_since >= self._seconds["settle_s"]):
            if over:
                say(f"the engine is ended after {self._seconds['drain_s']:.0f} s of draining.")
            self._send(now, signals)

    def _send(self, now: float, signals: Signals) -> None:
        self._sent_at = now
        signals.send(signal.SIGTERM)

    def _is_idle(self, settled: bool) -> bool:
        """Look whether requests are in flight. Twice in a row none: idle. Can't be known: not idle."""
        in_flight = self._in_flight()
        if in_flight == NOT_SERVING:
            return True
        self._idle_looks = self._idle_looks + 1 if settled and in_flight == 0 else 0
        return self._idle_looks >= 2

    def _in_flight(self) -> float | None:
        """Ask in a thread, one question at a time; None when that hangs, for the cap must be kept whatever the engine does."""
        found: list[float | None] = []
        try:
            if self._asking is None or not self._asking.is_alive():
                self._asking = threading.Thread(target=lambda: found.append(requests_in_flight(self._url)), daemon=True)
                self._asking.start()
                self._asking.join(ANSWER_S)
        except RuntimeError:
            # No thread is to be had: it can't be known.
            self._asking = None
        return found[0] if found else None


def requests_in_flight(url: str) -> float | None:
    """Ask the engine's metrics; None when they don't tell, NOT_SERVING when nothing listens."""
    # Not before it is needed: it takes longer to import than all the rest.
    import http.client
    import urllib.request

    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    if url.startswith("https:"):
        import ssl

        # It is our own engine on this machine, and its certificate names the service.
        handlers.append(urllib.request.HTTPSHandler(context=ssl._create_unverified_context()))
    try:
        with urllib.request.build_opener(*handlers).open(url, timeout=1.0) as answer:
            text = answer.read(1 << 22).decode("utf-8", "replace")
        values = [float(value) for value in IN_FLIGHT.findall(text)]
        return sum(values) if values else None
    except (OSError, ValueError, http.client.HTTPException) as error:
        refused = isinstance(getattr(error, "reason", error), ConnectionRefusedError)
        return NOT_SERVING if refused else None
