"""Response headers."""

from collections.abc import Sequence
from typing import Final
from urllib.parse import quote

from audit.log.receipt import Receipt
from gateway.directory.model_names import headers as naming_headers
from gateway.openai.asgi_client import Header
from gateway.request.stages import Parsed, Redacted, Route
from policy.decision.decision import Decision
from policy.facts import BackendFacts
from regions.fleet.fleet import Backend

MOST_KNOWN: Final = 10_000

JSON: Final[Header] = (b"content-type", b"application/json")
EVENT_STREAM: Final[tuple[Header, ...]] = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # a proxy must not buffer the stream
)
STREAMS: Final = {True: EVENT_STREAM, False: ((b"content-type", b"application/x-ndjson"), *EVENT_STREAM[1:])}
"""Headers of streams, by whether they consist of server-sent events (`ApiFormat.streams_events`)."""


def provenance(redacted: Redacted, route: Route | None, receipt: Receipt | None) -> list[Header]:
    """Return the headers that serve as evidence: location, policy and receipt of the call, as far as known."""
    request = redacted.request
    headers = [*request_id(request), *redacted.decided.reserved.rates]
    if request.naming is not None:
        headers += naming_headers(request.naming, request.call.model)
    if receipt is not None:
        headers.append((b"x-domicile-receipt", str(receipt).encode()))
    headers += _same_each_time(redacted.allowed, route)
    return headers


def watermark_header(said: str | None) -> Sequence[Header]:
    """What is said of the watermark that policy demands; nothing where it demands none."""
    return () if said is None else ((b"x-domicile-watermark", said.encode()),)


def fingerprint_header(said: str | None) -> Sequence[Header]:
    """What is said of the fingerprints that policy demands; nothing where it demands none."""
    return () if said is None else ((b"x-domicile-fingerprint", said.encode()),)


def manifest_header(said: str | None) -> Sequence[Header]:
    """What is said of the manifest that policy demands; nothing where it demands none."""
    return () if said is None else ((b"x-domicile-manifest", said.encode()),)


def request_id(request: Parsed) -> Sequence[Header]:
    """Return the headers with the call's id, including the one that clients of its API expect."""
    written, own = request.request_id.encode(), request.call.endpoint.format.request_id_header
    return ((b"x-request-id", written),) if own is None else ((b"x-request-id", written), (own, written))


_known: dict[tuple[int, int, int], tuple[Decision, Backend | None, BackendFacts | None, Sequence[Header]]] = {}


def _same_each_time(decision: Decision, route: Route | None) -> Sequence[Header]:
    """Return the headers shared by calls with one decision and one backend, cached.

    Decisions and backends are replaced as a whole, so comparing identities is enough. The cache references them, so
    their ids are not reused.
    """
    backend, facts = (None, None) if route is None else (route.backend, route.facts)
    key = id(decision), id(backend), id(facts)
    known = _known.get(key)
    if known is None:
        headers = [] if route is None else _of_route(route)
        headers.append((b"x-domicile-decision", f"allow {decision.policy_id}@{decision.version}".encode()))
        headers += [
            (f"x-domicile-notice-{notice.name}".encode(), notice.text.encode())
            for notice in decision.notices
            if notice.channel == "header"
        ]
        if len(_known) >= MOST_KNOWN:
            _known.clear()
        known = _known[key] = decision, backend, facts, headers
    return known[-1]


def _of_route(route: Route) -> list[Header]:
    backend, facts = route.backend, route.facts
    return [
        (b"x-domicile-region", backend.region.encode()),
        (b"x-domicile-backend", backend.id.encode()),
        (b"x-domicile-country", (facts.compute_country or "").encode()),
        (b"x-domicile-operator", quote(facts.operator or "", safe=" ().,&'/-").encode()),
    ]
