"""Chains: runs of letters and digits that may be one number, and whether a chain is a valid number of a kind."""

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from policy.redact.ids.kinds import IDS, with_trait
from policy.redact.text.alphabet import LETTER

_RUN = re.compile(r"[A-Za-z0-9]+(?:[ ./+-]{1,3}[A-Za-z0-9]+){0,9}")
_TOKEN = re.compile(r"[A-Za-z0-9]+")
_GOES_ON = re.compile(r"_|[./-][0-9]|[./-]\|[0-9]")
_WORD_GOES_ON = re.compile(f"[{LETTER}]")
_NUMBER_GOES_ON = re.compile("[ ./-]{1,3}[0-9]")
_DIGIT_LIKE = str.maketrans("OoIl|", "00111")
_DIGIT_LIKE_SIGN = re.compile(r"[OoIl|]")
_SIGNED = with_trait("signed")
_LONGEST, _SHORTEST = 20, 5
_LONGEST_WORD = 4
_SIGNS_INSIDE = frozenset("_./-|")
_LAST_ASCII = "\x7f"
_DIGITS_ONLY = tuple("9" * length for length in range(_LONGEST + 1))
_SHAPE = str.maketrans("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz", "9" * 10 + "A" * 52)
SHAPES_OF = {kind: each.shapes for kind, each in IDS.items()}


class Chain(NamedTuple):
    """The letters and digits of a candidate in ``text[begin:end]``, with their shape and number of groups."""

    begin: int
    end: int
    compact: str
    groups: int
    shape: str


def chains_at(latin: str, begin: int) -> list[Chain]:
    """Return every candidate that begins at `begin`, shortest first."""
    run = _RUN.match(latin, begin)
    if run is None:
        return []
    chains: list[Chain] = []
    compact, end = "", begin
    for groups, word in enumerate(_TOKEN.findall(run[0]), 1):
        if groups > 1 and len(word) > _LONGEST_WORD and word.isalpha():
            break
        compact += word
        length = len(compact)
        if length > _LONGEST:
            break
        end = latin.index(word, end) + len(word)
        if length >= _SHORTEST:
            behind = latin[end : end + 1]
            # As in `på`, where the p is followed by a letter outside ASCII
            if behind > _LAST_ASCII and _WORD_GOES_ON.match(behind):
                break
            if behind not in _SIGNS_INSIDE or not _GOES_ON.match(latin, end):
                shape = _DIGITS_ONLY[length] if compact.isdigit() else compact.translate(_SHAPE)
                chains.append(Chain(begin, end, compact, groups, shape))
    return chains


def goes_on(latin: str, chain: Chain) -> bool:
    """Return whether more digits follow directly."""
    return _NUMBER_GOES_ON.match(latin, chain.end) is not None


def holds(kind: str, latin: str, chain: Chain) -> bool:
    """Return whether a chain is a valid number of `kind`.

    Letters that look like digits are read as digits where the kind has digits.
    """
    shapes, compact = SHAPES_OF[kind], chain.compact
    if not shapes or chain.shape in shapes:
        is_valid = IDS[kind].is_valid
        if is_valid(compact):
            return True
        if kind in _SIGNED and chain.groups > 1:
            written = latin[chain.begin : chain.end]
            if kind != "de_stnr":  # its groups may be separated by spaces
                written = written.replace(" ", "")
            if written != compact and is_valid(written):
                return True
    if compact.isdigit() or not _DIGIT_LIKE_SIGN.search(compact):
        return False
    is_valid = IDS[kind].is_valid
    spelled = latin[chain.begin : chain.end].replace(" ", "")
    return any(
        is_valid(plain) or is_valid(_spelled(plain, spelled)) for plain in _plain(compact, shapes or IDS[kind].read_as)
    )


def _spelled(compact: str, written: str) -> str:
    """Return `compact` with the separators of `written`."""
    signs = iter(compact)
    return "".join(next(signs) if sign.isalnum() else sign for sign in written)


def _plain(compact: str, shapes: Iterable[str]) -> Iterator[str]:
    """Yield `compact` with look-alike letters replaced by digits, for each shape of its length."""
    for shape in shapes:
        if len(shape) == len(compact):
            plain = "".join(
                sign.translate(_DIGIT_LIKE) if wanted == "9" else sign
                for sign, wanted in zip(compact, shape, strict=True)
            )
            if plain != compact and all(
                sign.isdigit() for sign, wanted in zip(plain, shape, strict=True) if wanted == "9"
            ):
                yield plain
