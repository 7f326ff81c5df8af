"""A certificate authority for tests."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID


class Authority:
    """Signs certificates, and writes them to files."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.file = folder / f"{name}.pem"
        signed = self._sign(self._name, self._key, [x509.BasicConstraints(True, 0)], days=1)
        self.file.write_bytes(signed.public_bytes(Encoding.PEM))

    def issue(
        self, name: str, *names: str, days: float = 1, password: bytes = b""
    ) -> tuple[str, str]:
        """The files of a certificate for 127.0.0.1 and those names, and of its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        others = [x509.DNSName(each) for each in names]
        local = x509.IPAddress(ip_address("127.0.0.1"))
        signed = self._sign(subject, key, [x509.SubjectAlternativeName([local, *others])], days)
        certificate, secret = self._folder / f"{name}.crt", self._folder / f"{name}.key"
        certificate.write_bytes(signed.public_bytes(Encoding.PEM))
        hidden = BestAvailableEncryption(password) if password else NoEncryption()
        secret.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, hidden))
        return str(certificate), str(secret)

    def trusting(self, pair: tuple[str, str] | None = None) -> ssl.SSLContext:
        """A client's context that trusts this authority, with a certificate if given."""
        context = ssl.create_default_context(cafile=str(self.file))
        if pair is not None:
            context.load_cert_chain(*pair)
        return context

    def _sign(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        extensions: list[x509.ExtensionType],
        days: float,
    ) -> x509.Certificate:
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder(self._name, subject, key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=2))
            .not_valid_after(now + timedelta(days=days))
        )
        for extension in extensions:
            builder = builder.add_extension(extension, critical=False)
        return builder.sign(self._key, hashes.SHA256())
