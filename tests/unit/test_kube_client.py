"""The API-server client over real HTTPS: each way in which a call can end is an error of its own, and none hangs."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from sidecar.errors import (
    KubernetesBusy,
    KubernetesError,
    KubernetesNotFound,
    KubernetesUnauthorized,
    KubernetesUnreachable,
    NotInKubernetes,
)
from sidecar.kube.account import Account
from sidecar.kube.api import OUTCOMES, ApiServer, Call
from tests.fakes.apiserver import FakeApiServer
from tests.fakes.certificates import make_certificates

GET = Call("get pod", "GET", "/api/v1/namespaces/default/pods/vllm-0")
POD = {"metadata": {"name": "vllm-0", "namespace": "default"}}


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer(tmp_path / "server") as made:
        made.put("pods", dict(POD))
        yield made


@pytest.fixture
def account(server: FakeApiServer, tmp_path: Path) -> Account:
    (tmp_path / "token").write_text("admin\n")
    (tmp_path / "ca.crt").write_bytes((server.folder / "ca.crt").read_bytes())
    return Account(tmp_path, "127.0.0.1", str(server.port), "vllm-0", "default")


@pytest.fixture
async def api(account: Account) -> AsyncIterator[ApiServer]:
    made = ApiServer(account, call_s=20)
    yield made
    await made.close()


async def test_an_object_comes_back_as_it_is(api: ApiServer):
    assert (await api.ask(GET))["metadata"]["name"] == "vllm-0"


async def test_calls_are_counted_by_name_and_end(account: Account):
    counted: list[tuple[str, str]] = []
    api = ApiServer(account, lambda *call: counted.append(call))
    await api.ask(GET)
    with pytest.raises(KubernetesNotFound):
        await api.ask(Call("get pod", "GET", GET.path + "-nobody"))
    await api.close()
    assert counted == [("get pod", "ok"), ("get pod", "kubernetes_not_found")]
    assert {outcome for _, outcome in counted} <= set(OUTCOMES)


async def test_an_answer_that_does_not_come_is_given_up(server: FakeApiServer, account: Account):
    api = ApiServer(account, call_s=0.3)
    await api._connect()
    server.hang = True
    began = time.monotonic()
    with pytest.raises(KubernetesUnreachable, match="did not answer within"):
        await api.ask(GET)
    assert time.monotonic() - began < 5
    await api.close()


async def test_a_server_that_is_gone_is_unreachable_and_found_again(server: FakeApiServer, api: ApiServer):
    await api.ask(GET)
    await server.stop()
    with pytest.raises(KubernetesUnreachable):
        await api.ask(GET)
    await server.start()
    assert await api.ask(GET)


async def test_a_certificate_of_somebody_else_is_not_trusted(api: ApiServer, account: Account, tmp_path: Path):
    other = make_certificates(tmp_path / "other")
    account.certificate.write_bytes(other.authority.read_bytes())
    with pytest.raises(KubernetesUnreachable):
        await api.ask(GET)


async def test_a_renewed_authority_is_read_again(
    api: ApiServer, account: Account, server: FakeApiServer, tmp_path: Path
):
    right = account.certificate.read_bytes()
    account.certificate.write_bytes(make_certificates(tmp_path / "other").authority.read_bytes())
    with pytest.raises(KubernetesUnreachable):
        await api.ask(GET)
    account.certificate.write_bytes(right)
    assert await api.ask(GET)


@pytest.mark.parametrize(
    ("status", "text", "error"),
    [
        (429, '{"message": "slow down"}', KubernetesBusy),
        (500, "not even JSON", KubernetesError),
        (503, "", KubernetesError),
        (200, "[1, 2]", KubernetesError),
        (200, "<html>", KubernetesError),
        (401, "{}", KubernetesUnauthorized),
    ],
)
async def test_an_answer_that_cannot_be_used_is_an_error_with_a_sentence(
    server: FakeApiServer, api: ApiServer, status: int, text: str, error: type[KubernetesError]
):
    server.before = lambda _request: web.Response(status=status, text=text)
    with pytest.raises(error, match=f"answers {status}"):
        await api.ask(GET)


async def test_a_proxy_for_downloads_is_not_taken(api: ApiServer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    assert await api.ask(GET)


async def test_two_first_calls_at_once_share_one_client(api: ApiServer, server: FakeApiServer):
    await asyncio.gather(*(api.ask(GET) for _ in range(5)))
    assert len(server.requests) == 5


@pytest.mark.parametrize("content", [None, "", "two words"])
async def test_without_a_token_nothing_is_sent(
    account: Account, api: ApiServer, server: FakeApiServer, content: str | None
):
    if content is None:
        (account.directory / "token").unlink()
    else:
        (account.directory / "token").write_text(content)
    with pytest.raises(NotInKubernetes, match="token"):
        await api.ask(GET)
    assert server.requests == []


def test_outside_a_pod_the_address_is_missed_in_a_sentence(tmp_path: Path):
    with pytest.raises(NotInKubernetes, match="KUBERNETES_SERVICE_HOST"):
        _ = Account(tmp_path, "", "").url


def test_an_ipv6_address_stands_in_brackets(tmp_path: Path):
    assert Account(tmp_path, "fd00::1", "443").url == "https://[fd00::1]:443"


def test_a_bound_token_tells_the_pod_and_its_namespace(tmp_path: Path):
    claims = {"kubernetes.io": {"namespace": "serving", "pod": {"name": "vllm-7", "uid": "u"}}}
    payload = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    (tmp_path / "token").write_text(f"e30.{payload}.c2ln")
    account = Account(tmp_path, "127.0.0.1", "1", hostname="node-3")
    assert (account.name, account.namespace) == ("vllm-7", "serving")
    assert Account(tmp_path, "127.0.0.1", "1", "named", "asked").name == "named"


@pytest.mark.parametrize("token", ["opaque", "a.b", "e30.bm90IGpzb24.c2ln", "e30.W10.c2ln"])
def test_a_token_that_tells_nothing_leaves_the_host_name(tmp_path: Path, token: str):
    (tmp_path / "token").write_text(token)
    account = Account(tmp_path, "127.0.0.1", "1", hostname="vllm-0")
    assert account.name == "vllm-0"
    with pytest.raises(NotInKubernetes, match="WARMUP_POD_NAMESPACE"):
        _ = account.namespace


def test_a_pipe_in_place_of_the_token_holds_nobody(tmp_path: Path):
    import os

    os.mkfifo(tmp_path / "token")
    with pytest.raises(NotInKubernetes):
        Account(tmp_path, "127.0.0.1", "1").token()
