"""RFC 3161 timestamps of the anchor's checkpoints: an authority's word on when the log was in that state.

Only the anchor is stamped, so one token a day covers every tenant of the region. A token is accepted if it answers our
nonce, is over our text and is signed under a root that we trust; anything else is refused, put on record as
``checkpoint.timestamp_failed``, and the log continues. A qualified authority's time is presumed accurate (eIDAS 41(2)).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from cryptography import x509
from rfc3161_client import (
    HashAlgorithm,
    TimeStampRequest,
    TimestampRequestBuilder,
    VerificationError,
    VerifierBuilder,
    decode_timestamp_response,
)

from audit.errors import AuditError, TimestampError
from audit.events.anchor import CheckpointTimestamped, TimestampFailed
from audit.events.base import ANCHOR_TENANT
from audit.keys.signer import key_of
from audit.law.deadlines import rfc3339_of
from audit.private.audit_context import AuditContext
from audit.storage.attested_files import TIMESTAMPS
from audit.storage.tiles import Folder
from audit.tree.tlog_checkpoint import Checkpoint, open_checkpoint, origin_of
from audit.witness.anchor import digest

if TYPE_CHECKING:
    from audit.external_service import ExternalService

TIMEOUT_S = 15.0
MAX_RESPONSE = 1 << 16

Post = Callable[[str, bytes], bytes]
"""Sends a request to a URL; raises OSError."""


@dataclass(frozen=True, slots=True)
class Token:
    """A response that holds: `der` is the TimeStampResp, `gen_time` RFC 3339."""

    der: bytes
    gen_time: str


def post(url: str, body: bytes) -> bytes:
    """By HTTP, RFC 3161 section 3.4. Raises OSError."""
    from audit.external_service import ExternalUnavailable  # with its HTTP client, only where an authority is asked

    parts = urlsplit(url)
    if parts.scheme not in ("http", "https"):
        raise OSError(
            "the address of the time-stamping authority is no web address; set audit.timestamp_url to "
            "http:// or https://"
        )
    try:
        answer = _service(f"{parts.scheme}://{parts.netloc}").request(
            "POST", url, content=body, headers={"content-type": "application/timestamp-query"}
        )
    except ExternalUnavailable as error:
        raise OSError(str(error)) from error
    if answer.status != 200:
        raise OSError(f"it answered {answer.status}; check audit.timestamp_url")
    return answer.content


@cache
def _service(origin: str) -> "ExternalService":
    from audit.external_service import ExternalService

    return ExternalService("the time-stamping authority", deadline_s=TIMEOUT_S, max_bytes=MAX_RESPONSE)


def load_roots(path: Path) -> list[x509.Certificate]:
    """The certificates (PEM) of the roots that are trusted. Raises AuditError."""
    try:
        return x509.load_pem_x509_certificates(path.read_bytes())
    except (OSError, ValueError) as error:
        raise AuditError(
            f"the roots in {path.name} cannot be read: {error}; set audit.timestamp_ca to certificates in PEM"
        ) from error


def make_request(text: bytes) -> TimeStampRequest:
    """For SHA-256 of `text`, with a nonce and the authority's certificate."""
    return TimestampRequestBuilder().data(text).hash_algorithm(HashAlgorithm.SHA256).nonce(nonce=True).build()


def check_response(der: bytes, asked: TimeStampRequest, text: bytes, roots: Sequence[x509.Certificate]) -> Token:
    """Raises TimestampError, whose `reason` is malformed, refused, wrong_nonce, wrong_imprint or untrusted."""
    try:
        response = decode_timestamp_response(der)
        if response.status != 0:
            raise TimestampError(
                "refused", f"the authority refused with status {response.status}; ask the authority for the cause"
            )
        info = response.tst_info
    except ValueError as error:
        raise TimestampError("malformed", "the answer is no timestamp; check audit.timestamp_url") from error
    if info.nonce != asked.nonce:
        raise TimestampError(
            "wrong_nonce", "the timestamp answers another request and may be a replay; check audit.timestamp_url"
        )
    if info.message_imprint.message != sha256(text).digest():
        raise TimestampError("wrong_imprint", "the timestamp is over something else; check audit.timestamp_url")
    builder = VerifierBuilder.from_request(asked)
    for root in roots:
        builder = builder.add_root_certificate(root)
    try:
        builder.build().verify_message(response, text)
    except (VerificationError, ValueError) as error:
        raise TimestampError(
            "untrusted", f"the timestamp is not signed as it must be: {error}; check audit.timestamp_ca"
        ) from error
    return Token(der, rfc3339_of(info.gen_time.astimezone(UTC)))


async def timestamp(
    context: AuditContext, folder: Path, url: str, roots: Sequence[x509.Certificate], send: Post = post
) -> CheckpointTimestamped:
    """Have the anchor's last checkpoint stamped, and keep the token in `folder`, where the log is.

    Raises TimestampError, once the failure is on record; AuditError if there is no anchor yet.
    """
    note, checkpoint = await context.in_thread(lambda: _last(context))
    text = checkpoint.text().encode()
    name = urlsplit(url).hostname or "unknown"

    def obtain() -> Token:
        asked = make_request(text)
        try:
            answer = send(url, asked.as_bytes())
        except OSError as error:
            raise TimestampError(
                "unreachable", f"{name} cannot be reached: {error}; check audit.timestamp_url"
            ) from error
        return check_response(answer, asked, text, roots)

    try:
        token = await context.in_thread(obtain)
    except TimestampError as error:
        await context.record(TimestampFailed(size=checkpoint.size, tsa=name, reason=error.reason))
        raise
    token_sha256 = sha256(token.der).hexdigest()
    kept = Folder(folder / TIMESTAMPS)
    stem = f"{checkpoint.size:012d}-{token_sha256[:16]}"
    await context.in_thread(lambda: kept.write(f"{stem}.tsr", token.der))
    await context.in_thread(lambda: kept.write(f"{stem}.note", note.encode()))
    await context.in_thread(context.exchange)  # before the record names it: other hosts verify that it is there
    event = CheckpointTimestamped(
        size=checkpoint.size,
        checkpoint_sha256=digest(checkpoint),
        tsa=name,
        gen_time=token.gen_time,
        token_sha256=token_sha256,
    )
    await context.record(event)
    return event


def _last(context: AuditContext) -> tuple[str, Checkpoint]:
    with context.reading() as reader:
        last = reader.last_checkpoint(ANCHOR_TENANT)
    if last is None:
        raise AuditError("there is no checkpoint of the anchor yet; run `domicile audit anchor` first")
    origin = origin_of(context.signer.name, ANCHOR_TENANT)
    return last.note, open_checkpoint(last.note, origin, key_of(context.signer).public_keys)
