"""One log line a call, for operators who ask for it: who called what, where it went and how long it took. No content.

The record has every call anyway; this is for tools that read logs. It names the caller's address, which is personal
data, so it is off unless the configuration says ``log.access: true``.
"""

import logging
from time import perf_counter
from typing import Any

from gateway.request.exchange import Exchange
from gateway.server.logs.log_lines import FIELDS

log = logging.getLogger("domicile.access")


def log_access(exchange: Exchange) -> None:
    """Log the call, which is over."""
    fields = fields_of(exchange)
    log.info(" ".join(f"{name}={value}" for name, value in fields.items()), extra={FIELDS: fields})


def fields_of(exchange: Exchange) -> dict[str, Any]:
    """What is known of the call. `status`: what the client saw, 0 for nothing. `duration_ms`: since its body was
    read."""
    client, principal, parsed, routed = exchange.client, exchange.principal, exchange.parsed, exchange.routed
    fields: dict[str, Any] = {"route": exchange.endpoint.path, "status": client.status}
    if client.address is not None:
        fields["address"] = str(client.address)
    if principal is not None:
        fields |= {"tenant": principal.tenant, "project": principal.project, "key": principal.key_id}
    if exchange.refused_model:
        fields["model"] = exchange.refused_model
    if parsed is not None:
        fields |= {"request": parsed.request_id, "stream": parsed.call.stream}
        if parsed.offered:  # another name may be anything
            fields["model"] = parsed.call.model
        fields["duration_ms"] = round((perf_counter() - parsed.started) * 1000)
    if routed is not None:
        fields |= {"region": routed.route.backend.region, "backend": routed.route.backend.id}
    if (used := exchange.used) is not None:
        fields |= {"prompt_tokens": used.prompt, "answer_tokens": used.answer}
    return fields
