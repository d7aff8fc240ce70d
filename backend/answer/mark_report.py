"""Watermark report of an answer (whether the detector recognises it, or why not) and detector results of a text."""

from base64 import b64decode
from collections.abc import Callable, Sequence
from typing import Final

from backend.engine.core.sampling import SamplingParams
from backend.errors import InvalidRequest
from backend.marks.detector import MOST_PAIRS, is_detectable, p_value, pairs_of
from backend.marks.scheme import KEY_BYTES, SCHEME
from backend.wire import MarksFound, MarksRequest

MARKED: Final = "marked"
GREEDY: Final = "greedy"
SHORT: Final = "short"
FORM: Final = "form"
LOW_ENTROPY: Final = "low_entropy"
SHORT_BELOW: Final = 64
"""Tokens under which an answer counts as short rather than as one with little to choose."""


def mark_of(params: SamplingParams, tokens: Sequence[int]) -> str | None:
    """Return one of the words above, or None if no mark was requested. tokens: tokens of the answer.

    The report is the detector's result: an answer whose tokens were mostly certain has no mark.
    """
    if params.mark is None:
        return None
    if params.greedy or params.top_k == 1:
        return GREEDY
    if is_detectable(params.mark, tokens):
        return MARKED
    if len(tokens) < SHORT_BELOW:
        return SHORT
    return FORM if params.grammar else LOW_ENTROPY


def tested(encode: Callable[[str], list[int]], asked: MarksRequest) -> MarksFound:
    """Return the detector's scores of a text. Raises InvalidRequest."""
    try:
        keys = [b64decode(key, validate=True) for key in asked.keys]
    except ValueError:
        keys = [b""]
    if any(len(key) != KEY_BYTES for key in keys):
        raise InvalidRequest(f"a key is not {KEY_BYTES} bytes in base64; send such keys", param="keys")
    tokens = encode(asked.text)
    pairs = pairs_of(tokens)[:MOST_PAIRS]
    return MarksFound(
        scheme=SCHEME, tokens=len(tokens), pairs=len(pairs), p_values=[p_value(key, pairs) for key in keys]
    )
