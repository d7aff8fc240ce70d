"""One attempt of a call at one backend, and the handling of a backend's failure."""

import logging
from types import TracebackType

from gateway.errors import (
    BackendFailed,
    BackendRefused,
    BackendTimeout,
    BackendUnavailable,
    GatewayError,
)
from gateway.request.answer.received import ReceivedAnswer
from gateway.request.exchange import Exchange
from gateway.request.stages import Routed
from regions.fleet.fleet import Call

logger = logging.getLogger("domicile.gateway")

MAX_BROKEN = 1
"""Maximum number of answers to a call that fail in a backend before the client gets the error."""


class Superseded(Exception):
    """The basis of an attempt's decision is no longer in force. Nothing was sent to the backend after that."""


class Attempt:
    """Use as ``with Attempt(exchange, routed, call):`` around the call of the backend.

    Counts a backend's failure, and suppresses it if another backend may be called; otherwise raises the error for the
    client. Also suppresses Superseded: the same backend may then be called again.
    """

    __slots__ = ("_call", "_exchange", "_routed")

    def __init__(self, exchange: Exchange, routed: Routed, call: Call) -> None:
        self._exchange = exchange
        self._routed = routed
        self._call = call

    def __enter__(self) -> None:
        facts = self._routed.route.facts
        received = self._exchange.received
        received.weights = facts.weights if facts.weights_source == "computed" else None
        received.weights_differ = False

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is None:
            self._call.completed()
            return False
        if isinstance(error, Superseded):
            self._exchange.received.called = None
            self._exchange.attempts.tried.pop()  # it may be called again under the new configuration
            return True
        if isinstance(error, BackendRefused | BackendUnavailable | BackendTimeout | BackendFailed):
            self._failed(error)
            return True
        return False

    def _failed(self, error: GatewayError) -> None:
        """Raise the error for the client if no other backend may be called."""
        exchange, attempts = self._exchange, self._exchange.attempts
        received = exchange.received
        received.give_back()
        received.called = None  # the caller is not charged for a backend that failed
        if isinstance(error, BackendRefused):
            prompt = self._routed.redacted.prompt
            error = prompt.filtered(error)
            received.redactions = prompt.refusal_counts
            if error.is_busy:
                self._call.busy(error.retry_after_s)
        else:
            self._call.failed()
            attempts.broken += isinstance(error, BackendFailed)
        request = self._routed.request
        logger.warning(
            "%s: backend %s: %s; see the log of the backend",
            request.request_id,
            self._routed.route.backend.id,
            error.log_line,
        )
        unsent = request.client.held or not request.client.started
        # A request that crashes its server must not crash all servers in turn.
        if not (unsent and error.elsewhere) or attempts.broken > MAX_BROKEN:
            raise error
        attempts.failure = error
        # Nothing of this answer was sent to the client
        exchange.received = ReceivedAnswer(weights_differ=received.weights_differ)
