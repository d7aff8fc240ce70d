"""A time-stamping authority (RFC 3161) in a few lines: its own root, a signing certificate, tokens in hand-made DER."""

import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from hashlib import sha256

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from rfc3161_client import TimeStampRequest

from audit.pack_verifier.timestamp import values

SHA256 = bytes.fromhex("0609608648016503040201")
TST_INFO = bytes.fromhex("060b2a864886f70d0109100104")
SIGNED_DATA = bytes.fromhex("06092a864886f70d010702")
CONTENT_TYPE = bytes.fromhex("06092a864886f70d010903")
MESSAGE_DIGEST = bytes.fromhex("06092a864886f70d010904")
ECDSA_SHA256 = bytes.fromhex("06082a8648ce3d040302")
POLICY = bytes.fromhex("06042a030405")


def der(tag: int, *parts: bytes) -> bytes:
    content = b"".join(parts)
    size = len(content)
    if size < 0x80:
        return bytes([tag, size]) + content
    encoded = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes([tag, 0x80 | len(encoded)]) + encoded + content


def number(value: int) -> bytes:
    return der(2, value.to_bytes(value.bit_length() // 8 + 1, "big"))


def sequence(*parts: bytes) -> bytes:
    return der(0x30, *parts)


class FakeTsa:
    """`change` alters what it signs, `answer` what it sends."""

    def __init__(
        self, *, now: datetime | None = None, purpose: x509.ObjectIdentifier = ExtendedKeyUsageOID.TIME_STAMPING
    ):
        self.now = now or datetime.now(UTC)
        root_key, self._key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
        self.root = self._certificate("Test root", root_key, "Test root", root_key, None)
        self._leaf = self._certificate("Test TSA", self._key, "Test root", root_key, purpose)
        self.status = 0
        self.imprint: bytes | None = None
        self.nonce: int | None = None
        self.spoil: Callable[[bytes], bytes] = lambda answer: answer
        self.asked: list[TimeStampRequest] = []

    def _certificate(
        self,
        subject: str,
        key: ec.EllipticCurvePrivateKey,
        issuer: str,
        issuer_key: ec.EllipticCurvePrivateKey,
        purpose: x509.ObjectIdentifier | None,
    ) -> x509.Certificate:
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
            .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
            .public_key(key.public_key())
            .serial_number(int.from_bytes(os.urandom(8), "big") >> 1)
            .not_valid_before(self.now - timedelta(days=1))
            .not_valid_after(self.now + timedelta(days=30))
            .add_extension(x509.BasicConstraints(ca=purpose is None, path_length=None), critical=True)
        )
        if purpose is not None:
            builder = builder.add_extension(x509.ExtendedKeyUsage([purpose]), critical=True)
        return builder.sign(issuer_key, hashes.SHA256())

    def __call__(self, url: str, body: bytes) -> bytes:
        """As `audit.witness.timestamp.Post`."""
        parts = values(values(body)[0][1])
        imprint = values(parts[1][1])[1][1]
        nonce = next(int.from_bytes(content, "big") for tag, content in parts[2:] if tag == 2)
        if self.status:
            return sequence(sequence(number(self.status)))
        return self.spoil(sequence(sequence(number(0)), self._token(self.imprint or imprint, self.nonce or nonce)))

    def _token(self, imprint: bytes, nonce: int) -> bytes:
        algorithm = sequence(SHA256)
        when = der(0x18, self.now.strftime("%Y%m%d%H%M%SZ").encode())
        info = sequence(number(1), POLICY, sequence(algorithm, der(4, imprint)), number(42), when, number(nonce))
        attributes = [
            sequence(CONTENT_TYPE, der(0x31, TST_INFO)),
            sequence(MESSAGE_DIGEST, der(0x31, der(4, sha256(info).digest()))),
        ]
        signed = b"".join(sorted(attributes))
        signature = self._key.sign(der(0x31, signed), ec.ECDSA(hashes.SHA256()))
        issuer = self._leaf.issuer.public_bytes()
        signer = sequence(
            number(1),
            sequence(issuer, number(self._leaf.serial_number)),
            algorithm,
            der(0xA0, signed),
            sequence(ECDSA_SHA256),
            der(4, signature),
        )
        certificate = self._leaf.public_bytes(Encoding.DER)
        data = sequence(
            number(3),
            der(0x31, algorithm),
            sequence(TST_INFO, der(0xA0, der(4, info))),
            der(0xA0, certificate),
            der(0x31, signer),
        )
        return sequence(SIGNED_DATA, der(0xA0, data))
