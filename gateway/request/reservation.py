"""Reservation of limits: a call reserves its largest possible use before it runs and settles the actual use."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from math import floor, isinf
from types import TracebackType
from typing import Final, Protocol

from gateway.configuration.bounds import Bounds
from gateway.directory.model_names import Naming
from gateway.errors import InvalidRequest, LimitReached, PolicyDenied, RequestExceedsLimit
from gateway.identity.principal import Principal
from gateway.limits.limit_kinds import KINDS
from gateway.limits.limiter import NOTHING, Cost, Counter, Limiter, LimitExceeded, Reservation
from gateway.openai.asgi_client import Header
from gateway.records.prices import NANO, Price
from gateway.request.answer.received import CHARACTERS_PER_TOKEN, Used
from gateway.request.stages import Parsed, Reserved
from policy.reason import Reason

PriceOf = Callable[[str], Price | None]
"""Returns the current price of a model, None if it has none."""

UNCOUNTED_BYTES = 64 << 10
"""Maximum size of a body that is parsed before limits are checked: about a millisecond of work."""


_NOT_COUNTED: Final = nullcontext(False)


class Consumption(Protocol):
    """The usage of a call. `parsed`: the call, for the model that answers it."""

    @property
    def parsed(self) -> Parsed | None: ...

    @property
    def used(self) -> Used | None:
        """The tokens to charge; None if none are."""


class CallLimiter:
    """Checks and reserves the limits of calls."""

    def __init__(self, limiter: Limiter, price_of: PriceOf, bounds: Bounds) -> None:
        self._limiter = limiter
        self._price_of = price_of
        self._bounds = bounds

    def admission(self, principal: Principal, size: int) -> AbstractAsyncContextManager[bool]:
        """Check limits around the parsing of a body of `size` bytes, so a large body costs no time over the limit.

        A large body is counted as a request here, and its estimated tokens are held while it is parsed. The context's
        value says whether it was counted. Parsing a small body costs less than counting it twice. Entering raises as
        `reserve`.
        """
        if size <= UNCOUNTED_BYTES or not principal.counters:
            return _NOT_COUNTED
        return self._counted(principal, size)

    @asynccontextmanager
    async def _counted(self, principal: Principal, size: int) -> AsyncIterator[bool]:
        counters = [counter for counter in principal.counters if counter.kind.measure != "money"]
        try:
            reservation = await self._limiter.reserve(counters, Cost(size // CHARACTERS_PER_TOKEN))
        except LimitExceeded as error:
            raise _refused(error) from None
        try:
            yield True
        finally:
            await self._limiter.settle(reservation, NOTHING)

    async def reserve(self, request: Parsed, consumption: Consumption) -> "HeldReservation":
        """Reserve what the call may cost until the returned context ends, which settles what `consumption` reports.

        Raises LimitReached with the rate limit headers, and LimitsUnavailable if limits cannot be checked. A limit that
        cannot be applied is not ignored: raises PolicyDenied if a budget in money is set and the model has no price,
        and InvalidRequest if tokens are limited and the answer would have no end.
        """
        counters, call = request.principal.counters, request.call
        if call.has_no_end and any(counter.kind.is_settled for counter in counters):
            raise InvalidRequest(
                "ignore_eos without max_tokens gives an endless answer, which no limit can cover; set max_tokens",
                param="ignore_eos",
            )
        price = self._price_of(call.model)
        if price is not None and request.client.batch is not None:
            price = price.in_batch()
        if price is None:
            for counter in counters:
                if counter.kind.measure == "money":
                    because = f"a budget is set, and no price is known for {call.model[:80]}"
                    raise PolicyDenied([Reason(f"limits.{counter.kind.name}", None, because)])
        prompt = max(len(call.raw) // CHARACTERS_PER_TOKEN, call.request.prompt_ids)
        answer = call.most_tokens(self._bounds.now.default_max_tokens)
        if request.counted:
            counters = tuple(counter for counter in counters if counter.kind.is_held)
        try:
            cost = _cost(prompt, answer, 0, price)
            if request.naming is not None:
                cost = self._costliest(request, request.naming, prompt, answer, cost)
            reservation = await self._limiter.reserve(counters, cost)
        except LimitExceeded as error:
            refused = _refused(error)
            refused.rates = rate_headers(counters, error.used)
            raise refused from None
        reserved = Reserved(request, rate_headers(counters, reservation.used))
        return HeldReservation(self._limiter, reservation, reserved, consumption, price, self._price_of_call)

    def _price_of_call(self, request: Parsed) -> Price | None:
        price = self._price_of(request.call.model)
        return price.in_batch() if price is not None and request.client.batch is not None else price

    def _costliest(self, request: Parsed, naming: Naming, prompt: int, answer: int, cost: Cost) -> Cost:
        """Return the highest cost of all models that may answer, so that no fallback exceeds a budget.

        Raises PolicyDenied if a budget is set and one of them has no price.
        """
        is_budgeted = any(counter.kind.measure == "money" for counter in request.principal.counters)
        for model in naming.left:
            price = self._price_of(model)
            if price is None and is_budgeted:
                because = f"a budget is set, and no price is known for {model[:80]}"
                raise PolicyDenied([Reason("limits.price", None, because)])
            if price is not None and request.client.batch is not None:
                price = price.in_batch()
            cost = max(cost, _cost(prompt, answer, 0, price), key=lambda each: each.money)
        return cost


def _refused(error: LimitExceeded) -> LimitReached:
    said = str(error)
    kind = RequestExceedsLimit if error.retry_after is None else error.counter.kind.refusal
    return kind(said[:1].upper() + said[1:], retry_after_s=error.retry_after)


class HeldReservation:
    """A reservation as an asynchronous context manager. Leaving it settles the usage, also after an error."""

    __slots__ = ("_consumption", "_limiter", "_price", "_price_of", "_reservation", "_reserved")

    def __init__(
        self,
        limiter: Limiter,
        reservation: Reservation,
        reserved: Reserved,
        consumption: Consumption,
        price: Price | None,
        price_of: Callable[[Parsed], Price | None],
    ) -> None:
        """`price`: of the model asked first. `price_of`: returns the price of a fallback model."""
        self._price_of = price_of
        self._limiter = limiter
        self._reservation = reservation
        self._reserved = reserved
        self._consumption = consumption
        self._price = price

    async def __aenter__(self) -> Reserved:
        return self._reserved

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._reservation.counters:
            return
        used, request, price = self._consumption.used, self._consumption.parsed, self._price
        if request is not None and request.naming is not None:
            price = self._price_of(request)
        actual = NOTHING if used is None else _cost(used.prompt, used.answer, used.cached, price)
        await self._limiter.settle(self._reservation, actual)


def rate_headers(counters: Sequence[Counter], used: Sequence[float]) -> list[Header]:
    """Return OpenAI's ``x-ratelimit-*`` headers for the level with the least remaining; empty without such a limit.

    `used`: the amount consumed and held of each counter.
    """
    headers: list[Header] = []
    for kind, (limit, remaining, reset) in _RATES.items():
        tightest: tuple[float, Counter, float] | None = None
        for counter, amount in zip(counters, used, strict=True):
            left = counter.quota.capacity - amount
            if counter.kind is kind and (tightest is None or left < tightest[0]):
                tightest = left, counter, amount
        if tightest is not None:
            left, counter, amount = tightest
            headers += (
                (limit, b"%d" % counter.quota.capacity),
                (remaining, b"%d" % max(0, floor(left + 1e-6))),
                (reset, _duration(counter.quota.wait(amount, 0.0)).encode()),
            )
    return headers


def _header_names(header: str) -> tuple[bytes, bytes, bytes]:
    limit, remaining, reset = (f"x-ratelimit-{part}-{header}".encode() for part in ("limit", "remaining", "reset"))
    return limit, remaining, reset


_RATES: Final = {kind: _header_names(kind.header) for kind in KINDS if kind.header is not None}


def _duration(seconds: float) -> str:
    """Format `seconds` in OpenAI's notation: ``120ms``, ``1.5s``, ``6m0s``."""
    if isinf(seconds):
        return "0s"
    milliseconds = round(seconds * 1000)
    if milliseconds < 1000:
        return f"{milliseconds}ms" if milliseconds else "0s"
    minutes, rest = divmod(milliseconds, 60_000)
    shown = f"{rest / 1000:g}s"
    return f"{minutes}m{shown}" if minutes else shown


def _cost(prompt: int, answer: int, cached: int, price: Price | None) -> Cost:
    return Cost(prompt + answer, 0.0 if price is None else price.cost(prompt, answer, cached) / NANO)
