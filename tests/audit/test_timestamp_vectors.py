"""Responses of public authorities (RFC 3161), good and bad: judged by what accepts tokens, and by verify.py alone."""

from dataclasses import dataclass

import pytest
from rfc3161_client import decode_timestamp_response

from audit.errors import TimestampError
from audit.pack_verifier.fault import Broken
from audit.pack_verifier.timestamp import stamped
from audit.witness.timestamp import check_response, load_roots, make_request
from tests.audit.conftest import VECTORS

FOLDER = VECTORS / "rfc3161"
TEXT = b"hello"


@dataclass
class Asked:
    """A request that the response answers: its nonce is the response's own."""

    nonce: int | None
    policy: None = None


def verdict(name: str) -> str:
    """The time if it is accepted, else why not."""
    der = (FOLDER / name).read_bytes()
    roots = load_roots((FOLDER / name).with_name("ts_chain.pem"))
    asked = Asked(decode_timestamp_response(der).tst_info.nonce)
    payload = (FOLDER / name).with_name("payload")
    text = payload.read_bytes() if payload.exists() else TEXT
    try:
        return check_response(der, asked, text, roots).gen_time  # type: ignore[arg-type]
    except TimestampError as error:
        return error.reason


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("sigstage/response-sha256.tsr", "2025-05-09T11:58:55.000Z"),
        ("sigstage/response-invalid-signature.tsr", "untrusted"),
        ("sigstage/response-no-embedded-cert.tsr", "untrusted"),
        ("sigstage/response-sha384.tsr", "wrong_imprint"),  # we ask for SHA-256, and take nothing else
        ("sigstage/response-sha512.tsr", "wrong_imprint"),
        ("sigstore.mock/response-expired.tsr", "untrusted"),
        ("test_tsa/response.tsr", "wrong_imprint"),  # SHA-512
        ("test_tsa/response-injected-certs.tsr", "wrong_imprint"),
        ("test_tsa/other_response.tsr", "wrong_imprint"),
    ],
)
def test_public_responses_are_accepted_or_refused_for_the_right_reason(name: str, says: str) -> None:
    assert verdict(name) == says


def test_a_root_of_somebody_else_vouches_for_nothing() -> None:
    der = (FOLDER / "sigstage/response-sha256.tsr").read_bytes()
    roots = load_roots(FOLDER / "test_tsa/ts_chain.pem")
    with pytest.raises(TimestampError) as refused:
        check_response(der, Asked(decode_timestamp_response(der).tst_info.nonce), TEXT, roots)  # type: ignore[arg-type]
    assert refused.value.reason == "untrusted"


@pytest.mark.parametrize("file", sorted(FOLDER.rglob("*.tsr")), ids=lambda file: f"{file.parent.name}/{file.name}")
def test_no_public_response_answers_a_request_of_ours(file: object) -> None:
    with pytest.raises(TimestampError) as refused:
        check_response(file.read_bytes(), make_request(TEXT), TEXT, [])  # type: ignore[attr-defined]
    assert refused.value.reason == "wrong_nonce"


@pytest.mark.parametrize(
    ("name", "moment"),
    [
        ("sigstage/response-sha256.tsr", "2025-05-09T11:58:55Z"),
        ("sigstage/response-no-embedded-cert.tsr", "2025-06-18T08:13:02Z"),
        ("identrust/issue-104.tsr", "2025-03-11T08:52:08Z"),
        ("test_tsa/response.tsr", "2024-10-08T15:40:32Z"),
    ],
)
def test_verify_py_reads_imprint_and_time_of_public_responses(name: str, moment: str) -> None:
    der = (FOLDER / name).read_bytes()
    assert stamped(der, TEXT) == moment
    with pytest.raises(Broken, match="over something else"):
        stamped(der, b"hallo")
