"""The end of a request: its answer, or any error, which is converted to an answer here.

All of them are counted, and recorded if the request can be.
"""

import asyncio
import logging
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path

from gateway.api_format import rename
from gateway.content.prompt import output_refused
from gateway.errors import BackendRefused, GatewayError, GatewayStopping, InternalError, LimitReached, forget_frames
from gateway.openai.asgi_client import ClientGone, Header
from gateway.request.answer.headers import JSON, request_id
from gateway.request.exchange import Exchange
from gateway.request.recorder import Recorder
from gateway.request.telemetry import Telemetry
from policy.errors import RedactionError

logger = logging.getLogger("domicile.gateway")


class CallOutcome:
    """Runs a request to its end and handles its errors."""

    def __init__(
        self,
        recorder: Recorder,
        telemetry: Telemetry,
        offers: Callable[[str, str], bool],
        access: Callable[[Exchange], None] | None = None,
    ) -> None:
        """`access`: called with each finished call.

        `offers`: whether a tenant may call a model. Other names must not become label values of metrics, where each
        would create a new series.
        """
        self._access = access
        self._recorder = recorder
        self._telemetry = telemetry
        self._offers = offers

    async def of(self, exchange: Exchange, steps: Awaitable[None]) -> None:
        """Run `steps`, which store their progress in `exchange`.

        Does not raise for any error that a client, a backend or a stopping server can cause.
        """
        client = exchange.client
        with self._telemetry.request_span(exchange.endpoint.operation, client.headers):
            try:
                await steps
            except ClientGone:
                self._recorder.gone(exchange.endpoint.path, client.address, exchange.principal)
            except GatewayError as error:
                principal = exchange.principal
                if principal is not None and error.model and self._offers(principal.tenant, error.model):
                    exchange.refused_model = error.model
                await self._refuse(exchange, error)
                forget_frames(error)
            except RedactionError as error:
                await self._refuse(exchange, output_refused(error))
                forget_frames(error)
            except asyncio.CancelledError:
                await self._cancelled(exchange)
            except Exception as error:
                request_id = exchange.parsed.request_id if exchange.parsed else "request"
                logger.error("%s: %s; see the lines before", request_id, _without_content(error))
                await self._refuse(exchange, InternalError("The gateway failed; the call was not completed"))
            finally:
                client.stop_watching()
                exchange.received.give_back()
                self._telemetry.finished(exchange, client.status)
                if self._access is not None:
                    self._access(exchange)

    async def _cancelled(self, exchange: Exchange) -> None:
        """Handle cancellation: the client left, or the server stops and its grace period is over."""
        client = exchange.client
        if not client.gone:
            stopping = GatewayStopping("The gateway is stopping and cut this call; send it again", retry_after_s=1)
            await self._refuse(exchange, stopping)
            return
        if exchange.accepted is not None:
            await self._recorder.aborted(exchange, "client_disconnected")
        else:
            self._recorder.gone(exchange.endpoint.path, client.address, exchange.principal)

    async def _refuse(self, exchange: Exchange, error: GatewayError) -> None:
        """Record or count the refusal, then send it: as a status, or as an event in a stream that has begun."""
        client = exchange.client
        client.stop_watching()  # from here on nothing may be cancelled, because the outcome is being recorded
        asked, api = exchange.parsed, exchange.endpoint.format
        translation = asked.call.translation if asked is not None else None
        if translation is not None:  # so that the record and the client get the same message
            rename(error, translation.place)
        error, recorded = await self._recorder.refused(exchange, error)
        if not recorded:
            self._recorder.turned_away(error, exchange.endpoint.path, client.address, exchange.principal)
        # Backends use arbitrary codes, and each would create a new series.
        label = "backend_refused" if isinstance(error, BackendRefused) else error.code or "invalid_request"
        self._telemetry.errors.labels(label).inc()
        if client.started:  # no `[DONE]`, because the answer is incomplete
            events = exchange.received.events or (translation.events() if translation is not None else None)
            await client.end(api.stream_error(error) if events is None else events.failed(error))
            return
        body = api.error(error)
        headers = [JSON, (b"content-length", b"%d" % len(body)), *error.headers(), *_headers(exchange, error)]
        await client.start(error.http_status, headers)
        await client.end(body)


def _headers(exchange: Exchange, error: GatewayError) -> list[Header]:
    """Return the headers of the call that are known at its current stage."""
    if exchange.parsed is None:
        return []
    rates = error.rates if isinstance(error, LimitReached) and error.rates else ()
    if exchange.reserved is not None:
        rates = exchange.reserved.rates
    return [*request_id(exchange.parsed), *rates]


def _without_content(error: BaseException) -> str:
    """Return type and location of an error, without its message, which may quote the prompt."""
    places = traceback.extract_tb(error.__traceback__)[-3:]
    return f"{type(error).__name__} at " + " < ".join(f"{Path(p.filename).name}:{p.lineno}" for p in reversed(places))
