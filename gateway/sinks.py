"""Where something of every call comes to lie beside its backend, as facts for a decision.

The record is required: a policy whose `store_in` leaves its country out refuses every call. Spans are not: where a
policy does not allow their country, or nobody has said which it is, they stay here. What leaves for witnesses and
time-stamping authorities is the hash of a whole log, which says nothing of anybody.
"""

from urllib.parse import urlsplit

from gateway.settings import Settings, is_loopback
from policy.facts import Sink

RECORD, SPANS = "the record", "spans"


def sinks_of(settings: Settings) -> tuple[Sink, ...]:
    """None is named for the record where nobody has said in which country it is kept (`gateway.weaknesses` does)."""
    found = []
    if settings.sinks.record is not None:
        found.append(Sink(name=RECORD, country=settings.sinks.record))
    if spans_leave(settings):
        found.append(Sink(name=SPANS, country=settings.sinks.telemetry, required=False))
    return tuple(found)


def spans_leave(settings: Settings) -> bool:
    """Whether they go to another machine. A collector on this one is as near as the record is."""
    endpoint = settings.telemetry.otlp_endpoint
    return endpoint is not None and not is_loopback(urlsplit(endpoint).hostname or "")
