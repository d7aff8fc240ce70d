"""Timestamps of the anchor by an authority of our own, good and bad."""

from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID

from audit.errors import AuditError, TimestampError
from audit.pack_verifier.fault import Broken
from audit.pack_verifier.timestamp import stamped
from audit.storage.attested_files import files_beside
from audit.witness.anchor import anchor
from audit.witness.anchor_attestations import attestations
from audit.witness.timestamp import check_response, load_roots, make_request, post, timestamp
from tests.audit.conftest import Home, accepted, eventually
from tests.fakes.tsa import FakeTsa

TEXT = b"domicile.local/audit/_anchor\n7\nAAAA\n"
URL = "https://tsa.example/tsr"


def checked(tsa: FakeTsa, text: bytes = TEXT, **asked: object) -> str:
    request = make_request(TEXT)
    answer = tsa(URL, request.as_bytes())
    return check_response(answer, request, text, [tsa.root]).gen_time


def test_a_token_of_a_trusted_authority_over_our_text_is_accepted_with_its_time() -> None:
    assert checked(FakeTsa(now=datetime(2026, 11, 28, 3, 4, 5, tzinfo=UTC))) == "2026-11-28T03:04:05.000Z"


def refused(tsa: FakeTsa, *, roots: FakeTsa | None = None) -> str:
    request = make_request(TEXT)
    answer = tsa(URL, request.as_bytes())
    with pytest.raises(TimestampError) as caught:
        check_response(answer, request, TEXT, [(roots or tsa).root])
    return caught.value.reason


def test_a_token_that_answers_another_request_is_refused() -> None:
    tsa = FakeTsa()
    tsa.nonce = 7
    assert refused(tsa) == "wrong_nonce"


def test_a_token_over_something_else_is_refused() -> None:
    tsa = FakeTsa()
    tsa.imprint = sha256(b"else").digest()
    assert refused(tsa) == "wrong_imprint"


def test_a_token_of_an_authority_that_is_not_trusted_is_refused() -> None:
    assert refused(FakeTsa(), roots=FakeTsa()) == "untrusted"


def test_a_certificate_that_is_not_for_timestamps_is_refused() -> None:
    assert refused(FakeTsa(purpose=ExtendedKeyUsageOID.SERVER_AUTH)) == "untrusted"


def test_a_token_whose_signature_was_spoilt_is_refused() -> None:
    tsa = FakeTsa()
    tsa.spoil = lambda answer: answer[:-1] + bytes([answer[-1] ^ 1])
    assert refused(tsa) in ("untrusted", "malformed")


@pytest.mark.parametrize("answer", [b"", b"<html>", b"\x30\x03\x02\x01\x00"])
def test_what_is_no_timestamp_is_refused(answer: bytes) -> None:
    tsa = FakeTsa()
    tsa.spoil = lambda _: answer
    assert refused(tsa) in ("malformed", "refused")


def test_an_authority_that_refuses_is_told_as_such() -> None:
    tsa = FakeTsa()
    tsa.status = 2
    assert refused(tsa) in ("refused", "malformed")


async def anchored(home: Home, context: object) -> None:
    await context.record(accepted("a"))
    await eventually(lambda: "acme" in home.reader().tenants())
    await eventually(lambda: bool(list(home.reader().checkpoints("acme"))))
    await anchor(context)
    await eventually(lambda: bool(list(home.reader().checkpoints("_anchor"))))


async def test_the_anchor_is_stamped_and_the_token_kept_beside_the_log(home: Home) -> None:
    tsa = FakeTsa()
    async with home.context() as context:
        with pytest.raises(AuditError, match="no checkpoint of the anchor yet"):
            await timestamp(context, home.path.parent, URL, [tsa.root], tsa)
        await anchored(home, context)
        event = await timestamp(context, home.path.parent, URL, [tsa.root], tsa)
    (voucher,) = attestations(files_beside(home.path.parent))
    assert voucher.token is not None
    assert sha256(voucher.token).hexdigest() == event.token_sha256
    text = voucher.note.partition("\n\n")[0] + "\n"
    assert stamped(voucher.token, text.encode())[:10] == event.gen_time[:10]
    with pytest.raises(Broken, match="over something else"):
        stamped(voucher.token, b"another text")
    assert home.events("_anchor")[-1]["tsa"] == "tsa.example"
    assert home.verify().ok


async def test_a_failure_does_not_stop_the_log_but_is_on_record(home: Home) -> None:
    tsa = FakeTsa()
    tsa.nonce = 7

    def away(url: str, body: bytes) -> bytes:
        raise OSError("no route to host")

    async with home.context() as context:
        await anchored(home, context)
        for send in (tsa, away):
            with pytest.raises(TimestampError):
                await timestamp(context, home.path.parent, URL, [tsa.root], send)
        await context.record(accepted("b"))
    failures = [event for event in home.events("_anchor") if event["type"] == "checkpoint.timestamp_failed"]
    assert [event["reason"] for event in failures] == ["wrong_nonce", "unreachable"]
    assert attestations(files_beside(home.path.parent)) == []


def test_only_http_is_spoken_and_roots_are_certificates(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"set audit\.timestamp_url to http:// or https://"):
        post("file:///etc/passwd", b"")
    pem = tmp_path / "roots.pem"
    pem.write_bytes(FakeTsa().root.public_bytes(Encoding.PEM) * 2)
    assert len(load_roots(pem)) == 2
    pem.write_bytes(b"nothing")
    with pytest.raises(AuditError, match="cannot be read"):
        load_roots(pem)
