"""A backend hands out what its kernel and a program of the operator's attest, bound to nonce, TLS key and weights."""

import base64
import json
import logging
import os
import sys
import uuid
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from backend.errors import InvalidRequest
from backend.server.evidence import ORDER, EvidenceSource, certificates_of
from regions.evidence.attestation import binding
from regions.evidence.certificate_chains import fingerprint, read_pem
from tests.backend.scripted import Scripted
from tests.regions.evidence.hardware import Chain, pem, vcek

NONCE, WEIGHTS = b"n" * 32, "cd" * 32


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    file = tmp_path / "tls.pem"
    file.write_text(pem(Chain(ec.SECP256R1()).leaf))
    return file


def bound_to(certificate: Path) -> bytes:
    key = fingerprint(read_pem(certificate.read_bytes())[0].public_key()).removeprefix("sha256:")
    return binding(NONCE, key, WEIGHTS)


def program(tmp_path: Path, body: str) -> Path:
    file = tmp_path / "evidence"
    file.write_text(f"#!{sys.executable}\nimport json, sys\n{body}\n")
    file.chmod(0o700)
    return file


async def test_a_program_gets_what_to_bind_and_says_what_it_has(tmp_path: Path, certificate: Path) -> None:
    script = "print(json.dumps([{'technology': 'tpm', 'report': sys.argv[1]}]))"
    (piece,) = await EvidenceSource(program(tmp_path, script), certificate, tmp_path / "none").collect(NONCE, WEIGHTS)
    assert (piece.technology, bytes.fromhex(piece.report)) == ("tpm", bound_to(certificate))


@pytest.mark.parametrize("script", ["sys.exit(1)", "print('no JSON')", "print('{}')", "print('[{\"more\": 1}]')"])
async def test_a_program_that_fails_gives_nothing_and_the_log_says_so(
    tmp_path: Path, certificate: Path, script: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        source = EvidenceSource(program(tmp_path, script), certificate, tmp_path / "none")
        assert await source.collect(NONCE, WEIGHTS) == []
    assert "evidence" in caplog.text


class Configfs(type(Path())):  # type: ignore[misc]  # a path whose folders hold files as soon as they are made
    provider, table = "sev_guest", b""

    def mkdir(self, *args: object, **more: object) -> None:
        super().mkdir(*args, **more)
        (self / "provider").write_text(self.provider + "\n")
        (self / "outblob").write_bytes(b"report of the kernel")
        (self / "auxblob").write_bytes(self.table)


@pytest.mark.parametrize(("provider", "technology"), [("sev_guest", "sev-snp"), ("tdx_guest", "tdx"), ("arm", None)])
async def test_the_kernel_is_asked_by_a_folder_of_its_own_that_goes_again(
    tmp_path: Path, certificate: Path, provider: str, technology: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bytes] = []
    remove = os.rmdir

    def gone(path: Path) -> None:
        """Configfs removes the files with their folder."""
        asked.append((Path(path) / "inblob").read_bytes())
        for file in Path(path).iterdir():
            file.unlink()
        remove(path)

    monkeypatch.setattr("backend.server.evidence.os.rmdir", gone)
    monkeypatch.setattr(Configfs, "provider", provider)
    (tmp_path / "tsm").mkdir()
    found = await EvidenceSource(None, certificate, Configfs(tmp_path / "tsm")).collect(NONCE, WEIGHTS)
    assert [piece.technology for piece in found] == ([] if technology is None else [technology])
    assert asked == [bound_to(certificate)]
    assert list((tmp_path / "tsm").iterdir()) == []
    for piece in found:
        assert base64.b64decode(piece.report) == b"report of the kernel"


def test_the_certificates_of_a_hosts_table_come_in_order() -> None:
    chain = Chain(ec.SECP384R1(), vcek())
    ders = [each.public_bytes(Encoding.DER) for each in (chain.leaf, chain.middle, chain.root)]
    for spelled in (lambda each: each.bytes, lambda each: each.bytes_le):
        entries, content = b"", b""
        begin = 24 * 4
        for name, der in reversed(list(zip(ORDER, ders, strict=True))):
            entries += spelled(name) + (begin + len(content)).to_bytes(4, "little") + len(der).to_bytes(4, "little")
            content += der
        assert certificates_of(entries + bytes(24) + content) == chain.pem
    assert certificates_of(b"") == certificates_of(uuid.uuid4().bytes + bytes(8)) == ""


async def test_without_tls_there_is_no_key_to_bind_to(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="without TLS"):
        await EvidenceSource(None, None, tmp_path).collect(NONCE, WEIGHTS)


async def test_the_server_asks_for_a_nonce_and_knows_its_weights_first(tmp_path: Path, certificate: Path) -> None:
    backend = Scripted(tmp_path, "plain")
    for body in ({}, {"nonce": "00"}, {"nonce": "G" * 64}, {"nonce": "0" * 64, "more": 1}):
        assert (await backend.http.post("/evidence", json=body)).status_code == 400
    await backend.api.weights.measure()
    answer = await backend.http.post("/evidence", json={"nonce": NONCE.hex()})
    assert answer.status_code == 400
    assert "digest of the weights is not known" in json.dumps(answer.json())
