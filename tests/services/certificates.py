"""A certificate for the loopback that signs itself, and keys with it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509.oid import NameOID

PASSWORD = "changeit"


@dataclass(frozen=True)
class CertificateFiles:
    """The certificate and its key in PEM, and both in a key store for Java, with `PASSWORD`."""

    certificate: Path
    key: Path
    key_store: Path


def loopback_certificate(folder: Path) -> CertificateFiles:
    """Write a certificate of 127.0.0.1 that is valid for a day."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tiltyard tests")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    files = CertificateFiles(folder / "certificate.pem", folder / "key.pem", folder / "keys.p12")
    files.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    files.key.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    encryption = serialization.BestAvailableEncryption(PASSWORD.encode())
    files.key_store.write_bytes(pkcs12.serialize_key_and_certificates(b"own", key, certificate, None, encryption))
    return files
