"""Certificates of a hospital's own authority, for servers on loopback: `Authority(folder).issue("node0")` writes what a
node takes."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = timedelta(days=1)


class Authority:
    """An authority that signs any server's key; clients that trust `file` accept its certificates."""

    def __init__(self, folder: Path, name: str = "hospital CA") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._folder = folder
        self.file = folder / f"{name.replace(' ', '-')}.pem"
        own = self._begin(self._name, self._key, 30).add_extension(x509.BasicConstraints(True, 0), critical=True)
        self._certificate = own.sign(self._key, hashes.SHA256())
        self.file.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, *, days: int = 30, passphrase: bytes | None = None) -> tuple[Path, Path]:
        """Issues a certificate for 127.0.0.1 and localhost. Returns its file and the key's."""
        key = ec.generate_private_key(ec.SECP256R1())
        places = [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("localhost")]
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        made = self._begin(subject, key, days).add_extension(x509.SubjectAlternativeName(places), critical=False)
        certificate_file, key_file = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        certificate_file.write_bytes(made.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        protection = (
            serialization.NoEncryption() if passphrase is None else serialization.BestAvailableEncryption(passphrase)
        )
        key_file.write_bytes(
            key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, protection)
        )
        key_file.chmod(0o600)
        return certificate_file, key_file

    def _begin(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, days: int) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        begin = min(now, now + days * DAY) - DAY
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(begin)
            .not_valid_after(now + days * DAY)
        )
