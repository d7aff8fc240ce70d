"""One log line a call, for operators who ask for it: who called what, where it went and how long it took. No content.

The record has every call anyway; this is for tools that read logs. It names the caller's address, which is personal
data, so it is off unless the configuration says ``log.access: true``.
"""

import logging
from time import perf_counter
from typing import Any

from gateway.request.exchange import Exchange

log = logging.getLogger("domicile.access")


class AccessLog:
    def note(self, exchange: Exchange) -> None:
        """Log the call once it is over."""
        fields = fields_of(exchange)
        log.info(" ".join(f"{name}={value}" for name, value in fields.items()), extra={"fields": fields})


def fields_of(exchange: Exchange) -> dict[str, Any]:
    """What is known of the call. `status`: what the client saw, 0 for nothing. `duration_ms`: since its body was
    read."""
    principal, parsed, routed = exchange.principal, exchange.parsed, exchange.routed
    used = exchange.used
    fields: dict[str, Any] = {
        "request": parsed.request_id if parsed is not None else None,
        "route": exchange.endpoint.path,
        "status": exchange.client.status,
        "address": str(exchange.client.address) if exchange.client.address is not None else None,
        "tenant": principal.tenant if principal is not None else None,
        "project": principal.project if principal is not None else None,
        "key": principal.key_id if principal is not None else None,
        "model": parsed.call.model if parsed is not None and parsed.offered else exchange.refused_model or None,
        "stream": parsed.call.stream if parsed is not None else None,
        "region": routed.route.backend.region if routed is not None else None,
        "backend": routed.route.backend.id if routed is not None else None,
        "prompt_tokens": used.prompt if used is not None else None,
        "answer_tokens": used.answer if used is not None else None,
        "duration_ms": round((perf_counter() - parsed.started) * 1000) if parsed is not None else None,
    }
    return {name: value for name, value in fields.items() if value is not None}
