"""Where data of every call is stored apart from its backend, as facts for a decision.

The record is required: a policy whose `store_in` leaves its country out, or that does not know its country, refuses
every call. Only where the record stays on the machine that alone can call does it go nowhere that it was not before:
there no setting is needed. Spans are not required: where a policy does not allow their country, or it is not
configured, they stay here. What leaves for witnesses and time-stamping authorities is the hash of a whole log, which
tells nothing of anybody.
"""

import os
from collections.abc import Mapping
from urllib.parse import urlsplit

from gateway.configuration.database_urls import urls_of
from gateway.configuration.settings import Settings, is_loopback
from policy.facts import Sink

RECORD, SPANS = "the record", "spans"
RECORD_SETTING, SPANS_SETTING = "sinks.record", "sinks.telemetry"


def sinks_of(settings: Settings, environment: Mapping[str, str] = os.environ) -> tuple[Sink, ...]:
    """None stands for the record where its country is not configured and it `stays_here`."""
    found = []
    if settings.sinks.record is not None or not stays_here(settings, environment):
        found.append(Sink(name=RECORD, country=settings.sinks.record, setting=RECORD_SETTING))
    if spans_leave(settings):
        found.append(Sink(name=SPANS, country=settings.sinks.telemetry, required=False, setting=SPANS_SETTING))
    return tuple(found)


def stays_here(settings: Settings, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether callers can only be on this machine, and all that is kept of calls is on it too. Raises SettingsError."""
    nearby = is_loopback(settings.listen.host) and not settings.listen.tls_ended_by_proxy
    return nearby and urls_of(settings.database, environment).all_here


def spans_leave(settings: Settings) -> bool:
    """Whether they go to another machine. A collector on this one is as near as the record is."""
    endpoint = settings.telemetry.otlp_endpoint
    return endpoint is not None and not is_loopback(urlsplit(endpoint).hostname or "")
