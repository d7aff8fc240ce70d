"""Hidden states of a step, for a drafter that guesses from them."""

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class HiddenStates:
    """Of the tokens of the last step launched; on a device, behind it on the same stream.

    Attributes:
        states: [rows, width], valid until the next step is launched.
        first: by sequence id, the row of the first of its tokens; the others follow. A sequence that is missing has
            none here.
    """

    states: Tensor
    first: dict[int, int]


def first_rows(counts: Iterable[tuple[int, int]]) -> dict[int, int]:
    """`HiddenStates.first` of (sequence id, number of tokens) in the order of their rows."""
    found, at = {}, 0
    for id, count in counts:
        found[id] = at
        at += count
    return found
