"""Limits of a project: what a call may use is reserved before anything happens, what it did use is settled after.

Requests and tokens a minute and euros a month come from the policy in force, so a project can only lower them.
"""

from collections.abc import Mapping
from types import TracebackType

from gateway.errors import LimitReached, PolicyDenied
from gateway.exchange import Exchange
from gateway.limits import Cost, Limiter, LimitExceeded, Limits, Reservation
from gateway.settings import Price
from policy.compile import CompiledPolicy
from policy.decision import Reason

CHARACTERS_PER_TOKEN = 3  # on the safe side for the languages of the EU; only reserved, the real count is settled


class Meter:
    def __init__(self, limiter: Limiter, prices: Mapping[str, Price], default_max_tokens: int) -> None:
        self._limiter = limiter
        self._prices = prices
        self._default_max_tokens = default_max_tokens
        self._limits: dict[str, Limits] = {}

    async def reserve(self, exchange: Exchange) -> "Held":
        """Hold what the call may cost, until the block that is entered with it ends.

        Raises LimitReached, or PolicyDenied where a budget in money is set and the model has no price: a limit that
        cannot be applied is not ignored.
        """
        policy = exchange.principal.policy
        limits = self._limits_of(policy) if policy is not None else Limits()
        price = self._prices.get(exchange.call.model)
        if limits.money is not None and price is None:
            because = f"a budget is set, and no price is known for {exchange.call.model[:80]}"
            raise PolicyDenied([Reason("limits.eur_per_month", None, because)])
        prompt = len(exchange.call.raw) // CHARACTERS_PER_TOKEN
        answer = (exchange.call.max_tokens or self._default_max_tokens) * (exchange.call.request.n or 1)
        key = f"{exchange.principal.tenant}/{exchange.principal.project}"
        try:
            reservation = await self._limiter.reserve(key, limits, _cost(prompt, answer, price))
        except LimitExceeded as error:
            code = None if error.retry_after is not None else "request_exceeds_limit"
            raise LimitReached(_sentence(error), retry_after_s=error.retry_after, code=code) from None
        return Held(self._limiter, reservation, exchange, prompt, price)

    def _limits_of(self, policy: CompiledPolicy) -> Limits:
        known = self._limits.get(policy.hash)
        if known is None:
            limits = policy.limits
            known = Limits.of(rpm=limits.rpm, tpm=limits.tpm, eur_per_month=limits.eur_per_month)
            self._limits[policy.hash] = known
        return known


class Held:
    """A reservation, settled with what the call did use when its block ends, however it ends."""

    __slots__ = ("_exchange", "_limiter", "_price", "_prompt", "_reservation")

    def __init__(
        self, limiter: Limiter, reservation: Reservation, exchange: Exchange, prompt: int, price: Price | None
    ) -> None:
        """`prompt`: the tokens that were reserved for the prompt."""
        self._limiter = limiter
        self._reservation = reservation
        self._exchange = exchange
        self._prompt = prompt
        self._price = price

    async def __aenter__(self) -> None:
        return None

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._limiter.settle(self._reservation, _used(self._exchange, self._prompt, self._price))


def _used(exchange: Exchange, prompt: int, price: Price | None) -> Cost:
    """Real usage; for an answer that was cut, what the backend had to do until then: the prompt and what was sent."""
    if exchange.usage is not None:
        return _cost(exchange.usage.prompt_tokens, exchange.usage.completion_tokens, price)
    return _cost(prompt, exchange.chunks_out, price) if exchange.intent is not None else Cost()


def _cost(prompt: int, answer: int, price: Price | None) -> Cost:
    if price is None:
        return Cost(tokens=prompt + answer)
    euros = (prompt * price.input_eur_per_million + answer * price.output_eur_per_million) / 1e6
    return Cost(tokens=prompt + answer, money=euros)


def _sentence(error: LimitExceeded) -> str:
    said = str(error)
    return said[:1].upper() + said[1:]
