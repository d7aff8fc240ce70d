"""Evidence of the hardware that a backend runs on, for ``POST /evidence``: of its kernel, and of a program of yours.

The kernel's interface for confidential guests (configfs-tsm; Linux 6.7, Documentation/ABI/testing/configfs-tsm-report)
gives reports of SEV-SNP and quotes of TDX. A program (``--evidence``) gives what it does not: TPMs, GPUs, and the
certificates of a chip where the host does not pass them on. It gets the 64 bytes in hexadecimal digits as its argument
and prints a JSON list of pieces (`backend.wire.EvidencePiece`).
"""

import asyncio
import base64
import logging
import os
import ssl
import subprocess
import uuid
from contextlib import suppress
from hashlib import sha256, sha512
from pathlib import Path
from secrets import token_hex

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from pydantic import TypeAdapter, ValidationError

from backend.errors import InvalidRequest
from backend.wire import EVIDENCE_DOMAIN, EvidencePiece

log = logging.getLogger(__name__)

TSM = Path("/sys/kernel/config/tsm/report")
PROGRAM_S = 60
MAX_OUTPUT = 1 << 20
TECHNOLOGIES = {"sev_guest": "sev-snp", "tdx_guest": "tdx"}
ORDER = (
    uuid.UUID("63da758d-e664-4564-adc5-f4b93be8accd"),  # VCEK
    uuid.UUID("4ab7b379-bbac-4fe4-a02f-05aef327c782"),  # ASK
    uuid.UUID("c0b406a4-a803-4952-9743-3fb6014cd0ae"),  # ARK
)
"""Entries of the certificate table that a host passes to its guests (GHCB 2.0, 4.1.8.1)."""
ENTRY = 24
_PIECES = TypeAdapter(list[EvidencePiece])


class EvidenceSource:
    """`program`: of ``--evidence``. `certificate`: of this backend's TLS, PEM."""

    def __init__(self, program: Path | None = None, certificate: Path | None = None, tsm: Path = TSM) -> None:
        self._program, self._certificate, self._tsm = program, certificate, tsm

    async def collect(self, nonce: bytes, weights_sha256: str) -> list[EvidencePiece]:
        """All pieces there are, bound to `nonce` (32 bytes), the TLS key and the weights. Raises InvalidRequest."""
        return await asyncio.to_thread(self._collect, nonce, weights_sha256)

    def _collect(self, nonce: bytes, weights_sha256: str) -> list[EvidencePiece]:
        if self._certificate is None:
            raise InvalidRequest("without TLS there is no key to bind evidence to; serve with --cert and --key")
        key = x509.load_pem_x509_certificate(self._certificate.read_bytes()).public_key()
        spki = sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).digest()
        bound = sha512(EVIDENCE_DOMAIN + nonce + spki + bytes.fromhex(weights_sha256)).digest()
        pieces = [] if self._program is None else _of_program(self._program, bound)
        if self._tsm.is_dir():
            given = {piece.technology for piece in pieces}
            pieces += [piece for piece in _of_kernel(self._tsm, bound) if piece.technology not in given]
        return pieces


def _of_kernel(tsm: Path, bound: bytes) -> list[EvidencePiece]:
    """The report of the guest that this is; none where the kernel gives none."""
    entry = tsm / f"domicile-{token_hex(8)}"
    try:
        entry.mkdir()
        try:
            (entry / "inblob").write_bytes(bound)
            report, provider = (entry / "outblob").read_bytes(), (entry / "provider").read_text().strip()
            table = b""
            with suppress(OSError):
                table = (entry / "auxblob").read_bytes()
        finally:
            os.rmdir(entry)
    except OSError as error:
        log.warning("no evidence from the kernel: %s; let this process write to %s", error.strerror, tsm)
        return []
    technology = TECHNOLOGIES.get(provider)
    if technology is None:
        return []
    return [EvidencePiece(technology=technology, report=_b64(report), certificates=certificates_of(table))]


def certificates_of(table: bytes) -> str:
    """PEM of the certificates in a host's table, from the chip's upwards."""
    found: dict[uuid.UUID, bytes] = {}
    for at in range(0, len(table) - ENTRY + 1, ENTRY):
        name = table[at : at + 16]
        if not any(name):
            break
        begin, size = (int.from_bytes(table[at + to : at + to + 4], "little") for to in (16, 20))
        for known in (uuid.UUID(bytes=name), uuid.UUID(bytes_le=name)):
            found[known] = table[begin : begin + size]
    return "".join(ssl.DER_cert_to_PEM_cert(found[each]) for each in ORDER if found.get(each))


def _of_program(program: Path, bound: bytes) -> list[EvidencePiece]:
    try:
        ran = subprocess.run(  # noqa: S603  # the operator's own, by its path, with hexadecimal digits
            [str(program), bound.hex()], capture_output=True, timeout=PROGRAM_S, check=True
        )
        return _PIECES.validate_json(ran.stdout[:MAX_OUTPUT])
    except (OSError, subprocess.SubprocessError) as error:
        log.warning("no evidence from %s: %s; run it by hand", program, type(error).__name__)
    except ValidationError:
        log.warning("%s printed no list of evidence; print JSON as docs/weights-and-hardware.md describes", program)
    return []


def _b64(content: bytes) -> str:
    return base64.b64encode(content).decode()
