"""A certificate authority for tests."""

import datetime
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class Files:
    cert: Path
    key: Path


class Authority:
    def __init__(self, folder: Path, name: str = "test CA") -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = (
            self._builder(self._name, self._key.public_key(), -1, 1)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.cert = folder / "ca.pem"
        self.cert.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, sans: list[x509.GeneralName], *, days: tuple[int, int] = (-1, 1)) -> Files:
        """A leaf with these subject alternative names, valid from and to so many days from now."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._builder(x509.Name([]), key.public_key(), *days)
        if sans:
            builder = builder.add_extension(x509.SubjectAlternativeName(sans), critical=True)
        files = Files(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        files.cert.write_bytes(builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        files.key.write_bytes(key.private_bytes(pem, pkcs8, serialization.NoEncryption()))
        return files

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, first: int, last: int
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + datetime.timedelta(days=first))
            .not_valid_after(now + datetime.timedelta(days=last))
        )
