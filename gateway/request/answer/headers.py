"""Headers of answers."""

from typing import Final
from urllib.parse import quote

from audit.log.receipt import Receipt
from gateway.openai.asgi_client import Header
from gateway.request.stages import Redacted, Route

JSON: Final[Header] = (b"content-type", b"application/json")
EVENT_STREAM: Final[tuple[Header, ...]] = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # a proxy in front must not hold the stream back
)


def provenance(redacted: Redacted, route: Route | None, receipt: Receipt | None) -> list[Header]:
    """What the client may keep as evidence: where its call ran, under which policy, and its receipt. Without the parts
    that are not known yet."""
    decision = redacted.allowed
    headers = [(b"x-request-id", redacted.request.request_id.encode()), *redacted.decided.reserved.rates]
    if receipt is not None:
        headers.append((b"x-domicile-receipt", str(receipt).encode()))
    if route is not None:
        headers.append((b"x-domicile-region", route.backend.region.encode()))
        headers.append((b"x-domicile-backend", route.backend.id.encode()))
        headers.append((b"x-domicile-country", (route.facts.compute_country or "").encode()))
        headers.append((b"x-domicile-operator", quote(route.facts.operator or "", safe=" ().,&'/-").encode()))
    headers.append((b"x-domicile-decision", f"allow {decision.policy_id}@{decision.version}".encode()))
    headers += [
        (f"x-domicile-notice-{notice.name}".encode(), notice.text.encode())
        for notice in decision.notices
        if notice.channel == "header"
    ]
    return headers
