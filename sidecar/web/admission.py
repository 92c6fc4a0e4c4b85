"""The admission webhook's two ports: reviews over TLS for the API server, probes and metrics in plain HTTP.

What is done to a pod is decided in `kube/injection/`; how the process lives, in `commands/injector.py`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from aiohttp import web

from sidecar.errors import UsageError
from sidecar.kube.injection.review import Answer, Reviewer
from sidecar.metrics import CONTENT_TYPE
from sidecar.metrics.injector import InjectorMetrics
from sidecar.web.app import as_json, sentence

#: A review carries an object of at most etcd's 1.5 MiB, in JSON and perhaps twice.
LARGEST_REVIEW_BYTES = 8 << 20
#: Where the shipped webhook configuration sends reviews.
PATH = "/mutate"


@dataclass
class Injector:
    """What both ports answer from. `answered` is told each answer that is not plain; `stopping` closes readiness."""

    reviewer: Reviewer
    metrics: InjectorMetrics
    serving: Callable[[], bool]
    answered: Callable[[Answer, str], None] = lambda _answer, _pod: None
    stopping: bool = field(default=False)

    async def review(self, request: web.Request) -> web.Response:
        """Answer one review."""
        started = time.perf_counter()
        try:
            asked = json.loads(await request.read())
            answer = self.reviewer.answer(asked)
        except (ValueError, RecursionError, UsageError) as error:
            return sentence(f"This can't be answered: {error}", 400)
        self.metrics.reviewed(answer.outcome, time.perf_counter() - started)
        if answer.outcome != "unchanged":
            self.answered(answer, _name(asked["request"]))
        return as_json(answer.body)

    async def live(self, _: web.Request) -> web.Response:
        """Say that the loop runs."""
        return sentence("The injector is alive.", 200)

    async def ready(self, _: web.Request) -> web.Response:
        """Say whether reviews can be answered."""
        if self.stopping:
            return sentence("The injector ends.", 503)
        if not self.serving():
            return sentence("There is no certificate yet, so the API server can't be answered.", 503)
        return sentence("Reviews are answered.", 200)

    async def scrape(self, _: web.Request) -> web.Response:
        """Give the metrics."""
        return web.Response(body=self.metrics.render(), headers={"Content-Type": CONTENT_TYPE})


def review_app(injector: Injector) -> web.Application:
    """Make the application of the TLS port."""
    app = web.Application(client_max_size=LARGEST_REVIEW_BYTES)
    app.router.add_post(PATH, injector.review)
    return app


def probe_app(injector: Injector) -> web.Application:
    """Make the application of the plain port."""
    app = web.Application(client_max_size=1024)
    app.router.add_get("/livez", injector.live)
    app.router.add_get("/readyz", injector.ready)
    app.router.add_get("/metrics", injector.scrape)
    return app


def _name(request: dict[str, object]) -> str:
    """Name the pod of a review; one of a ReplicaSet has no name yet."""
    pod = request.get("object")
    metadata = pod.get("metadata") if isinstance(pod, dict) else None
    named = metadata if isinstance(metadata, dict) else {}
    return f"{request.get('namespace', '')}/{named.get('name') or named.get('generateName', '')}"
