"""The witness protocol over HTTP: a small server for a witness, and the log's client of it.

The server needs the standard library alone. Put TLS in front of it if it is reached from other machines; what it says
is signed anyway.
"""

import logging
from functools import cache, partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from audit.errors import AuditError, NoteError, WitnessError
from audit.storage.store import Reader
from audit.tree.cosignature import WitnessKey, cosigned_at
from audit.tree.merkle import consistency_proof, tree_hash
from audit.tree.note import VerifierKey
from audit.tree.tlog_checkpoint import open_checkpoint, origin_of
from audit.witness.witness import MAX_BODY, Witness, write_request

if TYPE_CHECKING:
    from audit.external_service import ExternalService

TIMEOUT_S = 10.0
PATH = "/add-checkpoint"

logger = logging.getLogger(__name__)


class _Handler(BaseHTTPRequestHandler):
    timeout = TIMEOUT_S

    def __init__(self, witness: Witness, *arguments: object) -> None:
        self._witness = witness
        super().__init__(*arguments)  # type: ignore[arg-type]

    def do_POST(self) -> None:
        length = self.headers.get("content-length", "")
        if not self.path.endswith(PATH):
            self._answer(404, "not here\n")
        elif not (length.isascii() and length.isdecimal()) or int(length) > MAX_BODY:
            self._answer(413, f"a request has a length of at most {MAX_BODY} bytes\n")
        else:
            try:
                answer = self._witness.add_checkpoint(self.rfile.read(int(length)))
            except AuditError as error:
                logger.error("the witness cannot answer: %s; check the file of its memory", error)
                self._answer(503, "the witness cannot answer now\n")
            else:
                self._answer(answer.status, answer.body, answer.content_type)

    def _answer(self, status: int, body: str, content_type: str = "text/plain; charset=utf-8") -> None:
        data = body.encode()
        self.send_response(status)
        self.send_header("content-type", content_type)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *arguments: object) -> None:
        logger.info("%s " + format, self.address_string(), *arguments)


def witness_server(witness: Witness, host: str, port: int) -> ThreadingHTTPServer:
    """A server bound to `host` and `port` (0: any); `serve_forever` runs it, `shutdown` and `server_close` end it."""
    return ThreadingHTTPServer((host, port), partial(_Handler, witness))


def submit(reader: Reader, key: VerifierKey, tenant: str, url: str, witness: WitnessKey) -> tuple[str, int]:
    """Have the last checkpoint of a tree cosigned; returns the note with the cosignature, and its time in seconds.

    Raises WitnessError if the witness is out of reach, refuses (it saw another history), or signs something else.
    """
    last = reader.last_checkpoint(tenant)
    if last is None:
        raise WitnessError(f"tenant {tenant} has no signed checkpoint yet; start the gateway, which signs one")
    size, note = last.size, last.note
    open_checkpoint(note, origin_of(key.name, tenant), key.public_key)
    status, body = _post(url, write_request(0, [], note))
    if status == 409:
        seen = _size(body, size)
        proof = consistency_proof(seen, size, lambda start, end: tree_hash(reader.leaf_hashes(tenant, start, end)))
        if seen == size:
            proof = []
        status, body = _post(url, write_request(seen, proof, note))
    if status != 200:
        raise WitnessError(
            f"the witness {witness.name} did not sign: {status} {body.strip()[:200]}"
            "; ask the witness's operator for the cause"
        )
    cosigned = note + body
    try:
        return cosigned, cosigned_at(cosigned, witness)
    except NoteError as error:
        raise WitnessError(f"what the witness answered does not hold: {error}; check the key of the witness") from error


def _size(body: str, ours: int) -> int:
    seen = body.strip()
    if not (seen.isascii() and seen.isdecimal()) or not 0 < int(seen) <= ours:
        raise WitnessError(
            f"the witness saw a log of {seen[:20]} records, this one has {ours} under a checkpoint"
            "; ask the witness's operator whether it saw another log of this name"
        )
    return int(seen)


def _post(url: str, body: bytes) -> tuple[int, str]:
    from audit.external_service import ExternalUnavailable  # with its HTTP client, only where a witness is asked

    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or parts.hostname is None:
        raise WitnessError(
            "the address of the witness is no web address; give one that begins with http:// or https://"
        )
    try:
        answer = _service(f"{parts.scheme}://{parts.netloc}").request("POST", url.rstrip("/") + PATH, content=body)
    except ExternalUnavailable as error:
        raise WitnessError(f"the witness cannot be reached: {error}; check its address and that it runs") from error
    return answer.status, answer.content.decode(errors="replace")


@cache
def _service(origin: str) -> "ExternalService":
    """A service for each witness, so that another one that hangs is not in its way."""
    from audit.external_service import ExternalService

    return ExternalService("the witness", deadline_s=TIMEOUT_S, max_bytes=MAX_BODY)
