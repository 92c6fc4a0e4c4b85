"""A small API server over real HTTPS: pods with their status, Events, Nodes, RBAC, conflicts; and whatever goes wrong.

It does only what this project asks of one, and `tests/kubernetes/test_apiserver_contract.py` holds it against the real one.
"""

from __future__ import annotations

import asyncio
import copy
import json
import secrets
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from aiohttp import web

from tests.fakes.certificates import make_certificates

JSON = dict[str, Any]
STRATEGIC = "application/strategic-merge-patch+json"


@dataclass
class Subject:
    """One token: who it is, the rules of its Roles by namespace, and those of its ClusterRoles."""

    name: str
    rules: list[JSON] = field(default_factory=list)
    cluster_rules: list[JSON] = field(default_factory=list)
    namespace: str = "default"
    admin: bool = False

    def may(self, verb: str, group: str, resource: str, namespace: str) -> bool:
        """Say whether a rule allows this."""
        given = [*self.cluster_rules, *(self.rules if namespace == self.namespace else [])]
        return self.admin or any(
            verb in rule["verbs"] and resource in rule["resources"] and group in rule["apiGroups"] for rule in given
        )


class FakeApiServer:
    """One API server; `async with` starts and stops it, `folder` gets its certificate.

    `subjects` are the tokens it knows. `before` sees every request and may answer instead. `requests` lists what came:
    method and path. `hang` makes every answer wait for ever.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.subjects: dict[str, Subject] = {"admin": Subject("admin", admin=True)}
        self.objects: dict[tuple[str, str, str], JSON] = {}
        self.requests: list[tuple[str, str]] = []
        self.before: Callable[[web.Request], web.Response | None] = lambda _request: None
        self.hang = False
        self.version = "v1.30.0"
        self._revision = 100
        self._runner: web.AppRunner | None = None
        self.port = 0

    async def __aenter__(self) -> FakeApiServer:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen; after a stop on the same port."""
        certificates = await asyncio.to_thread(make_certificates, self.folder)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates.certificate, certificates.key)
        application = web.Application(middlewares=[self._guard])
        pods = "/api/v1/namespaces/{namespace}/pods"
        events = "/apis/events.k8s.io/v1/namespaces/{namespace}/events"
        application.add_routes(
            [
                web.get("/version", self._version),
                web.get(pods + "/{name}", self._get("", "pods")),
                web.post(pods, self._create("", "pods")),
                web.patch(pods + "/{name}", self._patch("", "pods", status=False)),
                web.patch(pods + "/{name}/status", self._patch("", "pods", status=True)),
                web.get("/api/v1/nodes/{name}", self._get("", "nodes")),
                web.post("/api/v1/nodes", self._create("", "nodes")),
                web.get(events, self._list("events.k8s.io", "events")),
                web.post(events, self._create("events.k8s.io", "events")),
                web.patch(events + "/{name}", self._patch("events.k8s.io", "events", status=False)),
                web.post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", self._review),
            ]
        )
        self._runner = web.AppRunner(application, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, ssl_context=context)
        await site.start()
        assert site._server is not None
        self.port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]

    async def stop(self) -> None:
        """Be gone: connections are closed and the port refuses."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    def put(self, kind: str, thing: JSON) -> JSON:
        """Lay an object down as an administrator would; `kind` is its resource, such as `pods`."""
        metadata = thing.setdefault("metadata", {})
        metadata.setdefault("uid", secrets.token_hex(8))
        metadata["resourceVersion"] = self._next()
        self.objects[(kind, metadata.get("namespace", ""), metadata["name"])] = thing
        return thing

    def get(self, kind: str, name: str, namespace: str = "default") -> JSON:
        """Give an object as it lies there."""
        return self.objects[(kind, namespace, name)]

    def count(self, *methods: str) -> int:
        """Count the requests of these methods, reviews left out because they change nothing."""
        return sum(method in methods and "accessreviews" not in path for method, path in self.requests)

    # --- the requests -------------------------------------------------------------------------------------------------

    @web.middleware
    async def _guard(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.requests.append((request.method, request.path))
        if self.hang:
            await asyncio.Event().wait()
        if (answer := self.before(request)) is not None:
            return answer
        if _token(request) not in self.subjects:
            return _status(401, "Unauthorized", "Unauthorized")
        found: web.StreamResponse = await handler(request)
        return found

    async def _version(self, _request: web.Request) -> web.Response:
        return web.json_response({"gitVersion": self.version, "major": "1", "minor": self.version.split(".")[1]})

    async def _review(self, request: web.Request) -> web.Response:
        asked = await request.json()
        attributes = asked["spec"]["resourceAttributes"]
        resource = attributes["resource"]
        if attributes.get("subresource"):
            resource += "/" + attributes["subresource"]
        subject = self.subjects[_token(request)]
        allowed = subject.may(
            attributes["verb"], attributes.get("group", ""), resource, attributes.get("namespace", "")
        )
        return web.json_response({**asked, "status": {"allowed": allowed}}, status=201)

    def _refused(self, request: web.Request, verb: str, group: str, resource: str) -> web.Response | None:
        namespace = request.match_info.get("namespace", "")
        subject = self.subjects[_token(request)]
        if subject.may(verb, group, resource, namespace):
            return None
        said = f'User "{subject.name}" cannot {verb} resource "{resource}" in API group "{group}"'
        return _status(403, "Forbidden", said)

    def _get(self, group: str, resource: str) -> Any:
        async def get(request: web.Request) -> web.Response:
            if refused := self._refused(request, "get", group, resource):
                return refused
            found = self._find(request, resource)
            return web.json_response(found) if found else _not_found(request, resource)

        return get

    def _list(self, group: str, resource: str) -> Any:
        async def listed(request: web.Request) -> web.Response:
            if refused := self._refused(request, "list", group, resource):
                return refused
            namespace = request.match_info["namespace"]
            items = [
                thing for (kind, where, _), thing in self.objects.items() if (kind, where) == (resource, namespace)
            ]
            return web.json_response({"kind": "List", "items": items})

        return listed

    def _create(self, group: str, resource: str) -> Any:
        async def create(request: web.Request) -> web.Response:
            if refused := self._refused(request, "create", group, resource):
                return refused
            thing = await request.json()
            if "namespace" in request.match_info:
                thing["metadata"]["namespace"] = request.match_info["namespace"]
            key = (resource, thing["metadata"].get("namespace", ""), thing["metadata"]["name"])
            if key in self.objects:
                return _status(409, "AlreadyExists", f'{resource} "{key[2]}" already exists')
            if resource == "events" and (wrong := _wrong_event(thing)):
                return _status(422, "Invalid", wrong)
            return web.json_response(self.put(resource, thing), status=201)

        return create

    def _patch(self, group: str, resource: str, *, status: bool) -> Any:
        right = f"{resource}/status" if status else resource

        async def patch(request: web.Request) -> web.Response:
            if refused := self._refused(request, "patch", group, right):
                return refused
            found = self._find(request, resource)
            if found is None:
                return _not_found(request, resource)
            body = json.loads(await request.read())
            asked = body.get("metadata", {})
            if asked.get("uid") not in (None, found["metadata"]["uid"]):
                return _status(422, "Invalid", "metadata.uid: Invalid value: field is immutable")
            if asked.get("resourceVersion") not in (None, found["metadata"]["resourceVersion"]):
                return _status(409, "Conflict", "the object has been modified")
            merged = merge(found, body, strategic=request.content_type == STRATEGIC)
            if status:
                # A change of anything else through /status is dropped without a word.
                merged = {**found, "status": merged.get("status", {})}
            if merged != found:
                merged["metadata"] = {**found["metadata"], "resourceVersion": self._next()}
            key = (resource, request.match_info.get("namespace", ""), request.match_info["name"])
            self.objects[key] = merged
            return web.json_response(merged)

        return patch

    def _find(self, request: web.Request, resource: str) -> JSON | None:
        return self.objects.get((resource, request.match_info.get("namespace", ""), request.match_info["name"]))

    def _next(self) -> str:
        self._revision += 1
        return str(self._revision)


def merge(there: Any, patch: Any, *, strategic: bool, key: str = "") -> Any:
    """Merge a patch into an object. Strategic: `conditions` by their type, other lists are replaced."""
    if isinstance(there, Mapping) and isinstance(patch, Mapping):
        merged = copy.deepcopy(dict(there))
        for name, value in patch.items():
            if value is None:
                merged.pop(name, None)
            else:
                merged[name] = merge(merged.get(name), value, strategic=strategic, key=name)
        return merged
    if strategic and key == "conditions" and isinstance(there, list) and isinstance(patch, list):
        listed = {each["type"]: each for each in there}
        for each in patch:
            listed[each["type"]] = {**listed.get(each["type"], {}), **each}
        return list(listed.values())
    return copy.deepcopy(patch)


def _token(request: web.Request) -> str:
    return request.headers.get("Authorization", "").removeprefix("Bearer ")


def _wrong_event(event: JSON) -> str:
    """Say what the API server would not accept of an Event (pkg/apis/core/validation/events.go)."""
    for name in ("eventTime", "reportingController", "reportingInstance", "action", "reason"):
        if not event.get(name):
            return f"{name}: Required value"
    if "/" not in event["reportingController"]:
        return "reportingController: name should be qualified"
    if event.get("type") not in ("Normal", "Warning"):
        return "type: Invalid value"
    if len(event.get("note", "").encode()) > 1024:
        return "note: can have at most 1024 characters"
    regarding = event.get("regarding", {})
    if regarding.get("namespace") != event["metadata"]["namespace"]:
        return "regarding.namespace: does not match event.namespace"
    return ""


def _not_found(request: web.Request, resource: str) -> web.Response:
    return _status(404, "NotFound", f'{resource} "{request.match_info["name"]}" not found')


def _status(code: int, reason: str, message: str) -> web.Response:
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "message": message}
    return web.json_response({**body, "code": code}, status=code)
