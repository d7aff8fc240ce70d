"""One line of the input file of a batch: a request for one endpoint, in OpenAI's form.

{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {...}}
"""

from dataclasses import dataclass
from typing import Any

from gateway.content.retained_content import SUBJECT_FIELDS, subject_of
from gateway.errors import BodyTooComplex, InvalidRequest
from gateway.openai.bounds import BOUNDS
from gateway.openai.finite_json import NotFinite, read, write

MAX_CUSTOM_ID = 512
BOM = b"\xef\xbb\xbf"


class BadLine(Exception):
    """The line is no request of its batch. `custom_id`: where it has one."""

    def __init__(self, code: str, message: str, custom_id: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.custom_id = custom_id


@dataclass(frozen=True, slots=True)
class LineRequest:
    """`body`: as it goes through the pipeline."""

    number: int
    custom_id: str
    body: bytes


def parse_line(number: int, raw: bytes, endpoint: str) -> LineRequest:
    """Raises BadLine, which names the number and never the content."""
    said = _object(number, raw)
    custom_id = said.get("custom_id")
    if not isinstance(custom_id, str) or not custom_id or len(custom_id) > MAX_CUSTOM_ID:
        raise BadLine(
            "invalid_custom_id", f"Line {number}: custom_id must be a text of 1 to {MAX_CUSTOM_ID} characters; set it"
        )
    if said.get("method") != "POST":
        raise BadLine("invalid_method", f"Line {number}: method must be POST; set it", custom_id)
    if said.get("url") != endpoint:
        raise BadLine(
            "mismatched_endpoint",
            f"Line {number}: url is not {endpoint}, the endpoint of this batch; make another batch for other endpoints",
            custom_id,
        )
    body = said.get("body")
    if not isinstance(body, dict):
        raise BadLine("invalid_body", f"Line {number}: body must be a JSON object; send the request's body", custom_id)
    if body.get("stream"):
        raise BadLine("unsupported_stream", f"Line {number}: a batch does not stream; leave stream out", custom_id)
    try:
        return LineRequest(number, custom_id, write(body))
    except NotFinite:
        raise BadLine(
            "invalid_body", f"Line {number}: a number is too large; JSON has no infinity", custom_id
        ) from None


def _object(number: int, raw: bytes) -> dict[str, Any]:
    try:
        BOUNDS.check(raw)
        said = read(raw.removeprefix(BOM))
    except BodyTooComplex:
        raise BadLine("body_too_complex", f"Line {number} holds more values than a request may; divide it") from None
    except ValueError:
        raise BadLine("invalid_json_line", f"Line {number} is not valid JSON; write one JSON object a line") from None
    if not isinstance(said, dict):
        raise BadLine("invalid_json_line", f"Line {number} is not a JSON object; write one JSON object a line")
    return said


def person_in(raw: bytes) -> str | None:
    """The person that a line is about, as its body names them. None also where it is no request, or names nobody that
    could be found under it again: such a line is refused when its turn comes."""
    if b"\\u" not in raw and not any(field in raw for field in _NAMES):
        return None
    try:
        BOUNDS.check(raw)
        said = read(raw.removeprefix(BOM))
        body = said.get("body") if isinstance(said, dict) else None
        return subject_of({}, body) if isinstance(body, dict) else None
    except (InvalidRequest, ValueError):
        return None


_NAMES = tuple(f'"{field}"'.encode() for field in SUBJECT_FIELDS)


def custom_id_of(raw: bytes) -> str | None:
    """The application's name for the line, if it has one."""
    try:
        said = read(raw.removeprefix(BOM))
    except ValueError:
        return None
    found = said.get("custom_id") if isinstance(said, dict) else None
    return found if isinstance(found, str) else None
