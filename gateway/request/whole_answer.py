"""What a whole answer tells, noted for the meter and the record."""

from gateway.content.whole_answer import Told
from gateway.request.exchange import Exchange


def note(exchange: Exchange, told: Told) -> None:
    exchange.usage, exchange.fingerprint = told.usage, told.fingerprint
    exchange.characters_out += told.characters
    exchange.tool_calls += told.tool_calls
    exchange.finish_reasons.extend(told.finish_reasons)
