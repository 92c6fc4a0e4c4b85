"""The webhook's certificate: made, renewed in time, kept in step with its CA, and taken by a running server."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from cryptography import x509

from sidecar.kube.injection import certificates, keeping
from sidecar.kube.injection.certificates import Pair, make_authority, make_serving, service_names
from sidecar.kube.injection.keeping import CA, CA_KEY, CERTIFICATE, KEY, Cluster, Wanted, keep
from sidecar.web.certificate import ServedCertificate
from tests.kubernetes.pod_shapes import Json

START = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
WANTED = Wanted("warmup-system", "warmup-injector", "warmup-injector-tls", "warmup-injector")
DAY = datetime.timedelta(days=1)


class Memory(Cluster):
    """One Secret and one webhook configuration, with the API server's rule about versions."""

    def __init__(self) -> None:
        self.secret: Json | None = None
        self.bundle = ""
        self.writes = 0
        self.interrupt = False

    async def read_secret(self, namespace: str, name: str) -> Json | None:
        return None if self.secret is None else {**self.secret}

    async def write_secret(self, namespace: str, name: str, body: Json) -> bool:
        if self.interrupt:
            # Somebody else does the same at this moment, and is faster.
            self.interrupt = False
            await keep(self, WANTED, START)
        version = (self.secret or {"metadata": {}})["metadata"].get("resourceVersion")
        if body["metadata"].get("resourceVersion") != version:
            return False
        self.writes += 1
        self.secret = {**body, "metadata": {**body["metadata"], "resourceVersion": str(self.writes)}}
        return True

    async def set_ca(self, webhook: str, bundle: str) -> bool:
        changed = self.bundle != bundle
        self.bundle = bundle
        return changed

    def part(self, name: str) -> bytes:
        assert self.secret is not None
        return base64.b64decode(self.secret["data"][name])

    def serving(self) -> x509.Certificate:
        return x509.load_pem_x509_certificate(self.part(CERTIFICATE))


@pytest.fixture
async def memory() -> Memory:
    made = Memory()
    await keep(made, WANTED, START)
    return made


async def test_the_first_run_makes_a_certificate_that_the_configuration_trusts(memory: Memory):
    authorities = x509.load_pem_x509_certificates(base64.b64decode(memory.bundle))
    memory.serving().verify_directly_issued_by(authorities[0])
    names = memory.serving().extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "warmup-injector.warmup-system.svc" in names.get_values_for_type(x509.DNSName)
    assert memory.secret is not None
    assert memory.secret["type"] == "kubernetes.io/tls"


async def test_a_second_run_does_nothing_more(memory: Memory):
    assert await keep(memory, WANTED, START + DAY) == ["Nothing to do: the certificate is good."]
    assert memory.writes == 1


@pytest.mark.parametrize(("days", "renewed"), [(59, False), (61, True), (400, True)])
async def test_it_is_renewed_when_two_thirds_of_its_life_are_over(memory: Memory, days: int, renewed: bool):
    before, bundle = memory.part(CERTIFICATE), memory.bundle
    await keep(memory, WANTED, START + days * DAY)
    assert (memory.part(CERTIFICATE) != before) is renewed
    # The CA stays, so nobody has to learn anything anew.
    assert memory.bundle == bundle
    assert memory.serving().not_valid_after_utc > START + days * DAY


async def test_a_ca_in_its_last_year_is_followed_by_another_that_is_trusted_beside_it(memory: Memory):
    old = memory.serving()
    await keep(memory, WANTED, START + 3400 * DAY)
    authorities = x509.load_pem_x509_certificates(base64.b64decode(memory.bundle))
    assert len(authorities) == 2
    memory.serving().verify_directly_issued_by(authorities[0])
    # Injectors serve the old one until the kubelet has brought them the new one.
    old.verify_directly_issued_by(authorities[1])


async def test_of_two_runs_at_once_one_wins_and_both_trust_it(memory: Memory):
    fresh = Memory()
    fresh.interrupt = True
    await keep(fresh, WANTED, START)
    assert fresh.writes == 1
    fresh.serving().verify_directly_issued_by(x509.load_pem_x509_certificate(base64.b64decode(fresh.bundle)))


@pytest.mark.parametrize("name", [CERTIFICATE, KEY, CA, CA_KEY])
async def test_what_is_damaged_or_gone_is_made_anew(memory: Memory, name: str):
    assert memory.secret is not None
    for value in ("", base64.b64encode(b"garbage").decode()):
        memory.secret["data"] = {**memory.secret["data"], name: value}
        await keep(memory, WANTED, START + DAY)
        memory.serving().verify_directly_issued_by(x509.load_pem_x509_certificate(memory.part(CA)))
        assert certificates.fits(Pair(memory.part(CERTIFICATE), memory.part(KEY)))
        assert certificates.fits(Pair(memory.part(CA), memory.part(CA_KEY)))


async def test_a_configuration_that_was_applied_anew_gets_the_ca_again(memory: Memory):
    memory.bundle = ""
    assert await keep(memory, WANTED, START + DAY) == [
        "MutatingWebhookConfiguration warmup-injector trusts this CA now."
    ]
    assert memory.writes == 1


def test_a_certificate_for_other_names_is_renewed():
    authority = make_authority(START)
    serving = make_serving(authority, ["other.example"], START)
    why = certificates.why_renew(serving, authority.certificate, service_names("a", "b"), START)
    assert why == "it is for other names"


# --- the running server --------------------------------------------------------------------------------------------------


def lay(folder: Path, pair: Pair) -> None:
    """Replace both files at once, as the kubelet does: a link that is renamed."""
    version = folder / f"..{len(list(folder.iterdir()))}"
    version.mkdir()
    (version / "tls.crt").write_bytes(pair.certificate)
    (version / "tls.key").write_bytes(pair.key)
    link = folder / "..new"
    link.symlink_to(version)
    link.rename(folder / "..data")
    for name in ("tls.crt", "tls.key"):
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(Path("..data", name))


class Served:
    """A TLS server with a certificate that may change."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.told: list[str] = []
        self.certificate = ServedCertificate(
            folder / "tls.crt", folder / "tls.key", lambda sentence, _good: self.told.append(sentence)
        )
        self.authority = make_authority(datetime.datetime.now(datetime.UTC))
        self.port = 0

    def renew(self) -> Pair:
        pair = make_serving(self.authority, ["localhost"], datetime.datetime.now(datetime.UTC))
        lay(self.folder, pair)
        return pair

    async def seen(self) -> bytes:
        """Give the certificate that a new connection gets, checked against the CA."""
        trust = ssl.create_default_context(cadata=self.authority.certificate.decode())
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=trust, server_hostname="localhost")
        found = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
        with contextlib.suppress(ssl.SSLError, ConnectionError):
            await writer.wait_closed()
        assert isinstance(found, bytes)
        assert reader is not None
        return ssl.DER_cert_to_PEM_cert(found).encode()


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    made = Served(tmp_path)
    made.renew()
    assert made.certificate.look()

    async def close(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(close, "127.0.0.1", 0, ssl=made.certificate.context)
    made.port = server.sockets[0].getsockname()[1]
    async with server:
        yield made


async def test_a_renewed_certificate_is_served_to_new_connections_without_a_restart(served: Served):
    first = await served.seen()
    pair = served.renew()
    assert served.certificate.look()
    assert await served.seen() == pair.certificate != first


async def test_a_pair_that_does_not_fit_is_told_once_and_the_one_before_goes_on(served: Served):
    before = await served.seen()
    stranger = make_serving(served.authority, ["localhost"], datetime.datetime.now(datetime.UTC))
    lay(served.folder, Pair(stranger.certificate, served.authority.key))
    assert not served.certificate.look()
    assert not served.certificate.look()
    assert await served.seen() == before
    assert len([told for told in served.told if "can't be used together" in told]) == 1


async def test_files_that_vanish_change_nothing(served: Served):
    before = await served.seen()
    (served.folder / "..data").unlink()
    assert not served.certificate.look()
    assert await served.seen() == before
    served.renew()
    assert served.certificate.look()


def test_nothing_is_looked_at_twice(tmp_path: Path):
    made = Served(tmp_path)
    assert not made.certificate.look()
    assert not made.certificate.loaded
    made.renew()
    assert made.certificate.look()
    assert not made.certificate.look()


def test_the_names_of_the_secret_are_those_that_the_manifests_mount():
    assert (keeping.CERTIFICATE, keeping.KEY) == ("tls.crt", "tls.key")
