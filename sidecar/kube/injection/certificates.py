"""The webhook's own certificate: a CA that only this webhook is trusted by, and a serving certificate signed by it.

Nothing is stored or sent here; `keeping.py` does that. For clusters without cert-manager.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

#: The CA outlives many serving certificates, so that caBundle changes once in years.
CA_DAYS = 3650
#: A serving certificate is renewed when two thirds of its life are over: a renewal that fails for a month is no outage.
SERVING_DAYS = 90
#: Clocks of nodes differ.
BACK_DATED = datetime.timedelta(minutes=5)


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, both PEM."""

    certificate: bytes
    key: bytes


def make_authority(now: datetime.datetime, name: str = "warmup-sidecar-injector-ca") -> Pair:
    """Make a CA."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    built = _builder(subject, subject, key.public_key(), now, CA_DAYS)
    built = built.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    built = built.add_extension(usage, critical=True)
    return Pair(_pem(built.sign(key, hashes.SHA256())), _key_pem(key))


def make_serving(authority: Pair, names: Sequence[str], now: datetime.datetime) -> Pair:
    """Make a serving certificate for these DNS names."""
    issuer = x509.load_pem_x509_certificate(authority.certificate)
    signer = serialization.load_pem_private_key(authority.key, None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey), "made by make_authority"
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:64])])
    built = _builder(subject, issuer.subject, key.public_key(), now, SERVING_DAYS)
    built = built.add_extension(x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=False)
    built = built.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    built = built.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    return Pair(_pem(built.sign(signer, hashes.SHA256())), _key_pem(key))


def service_names(service: str, namespace: str) -> list[str]:
    """Give the names by which the API server calls a Service ("Contacting the webhook": `<service>.<namespace>.svc`)."""
    return [f"{service}.{namespace}.svc", f"{service}.{namespace}.svc.cluster.local", f"{service}.{namespace}"]


def why_renew(serving: Pair, authority: bytes, names: Sequence[str], now: datetime.datetime) -> str:
    """Say why a serving certificate must be made anew; empty when it is good."""
    if not fits(serving):
        return "it and its key don't fit together"
    try:
        certificate = x509.load_pem_x509_certificate(serving.certificate)
        issuer = x509.load_pem_x509_certificate(authority)
        certificate.verify_directly_issued_by(issuer)
        alternative = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except Exception as error:  # whatever is wrong with it, a new one is not
        return f"it can't be used ({type(error).__name__})"
    if not set(names) <= set(alternative.get_values_for_type(x509.DNSName)):
        return "it is for other names"
    whole = certificate.not_valid_after_utc - certificate.not_valid_before_utc
    if now >= certificate.not_valid_before_utc + whole * 2 / 3:
        return f"it ends on {certificate.not_valid_after_utc:%Y-%m-%d}"
    return ""


def why_new_authority(authority: Pair, now: datetime.datetime) -> str:
    """Say why the CA must be made anew: in its last year, or unusable; empty when it is good."""
    if not fits(authority):
        return "it and its key don't fit together"
    certificate = x509.load_pem_x509_certificate(authority.certificate)
    if now >= certificate.not_valid_after_utc - datetime.timedelta(days=365):
        return f"it ends on {certificate.not_valid_after_utc:%Y-%m-%d}"
    return ""


def fits(pair: Pair) -> bool:
    """Tell whether certificate and key belong together."""
    try:
        key = serialization.load_pem_private_key(pair.key, None)
        mine = x509.load_pem_x509_certificate(pair.certificate).public_key()
    except (ValueError, TypeError):
        return False
    return isinstance(key, ec.EllipticCurvePrivateKey) and key.public_key() == mine


def usable(certificate: bytes) -> bool:
    """Tell whether this is a certificate at all."""
    try:
        x509.load_pem_x509_certificate(certificate)
    except ValueError:
        return False
    return True


def ends_at(serving: bytes) -> datetime.datetime:
    """Give the end of a certificate. Raises ValueError."""
    return x509.load_pem_x509_certificate(serving).not_valid_after_utc


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime.datetime, days: int
) -> x509.CertificateBuilder:
    built = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    built = built.serial_number(x509.random_serial_number())
    built = built.not_valid_before(now - BACK_DATED).not_valid_after(now + datetime.timedelta(days=days))
    return built.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
