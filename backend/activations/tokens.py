"""Tokens of a text that was written by a model: as its tokenizer reads the text, or in other pieces.

A model may spell a text in other tokens than its tokenizer would. The commitment holds digests of the tokens, so that
other pieces of the same text can be tried until they are the ones that were drawn.
"""

from collections.abc import Iterator, Sequence

from backend.activations.answer_commitment import Chunk, digest_after, hashed
from backend.activations.largest_activations import CHUNK

MOST_SPAN = 3  # tokens of the tokenizer's that are tried in other pieces
MOST_PIECES = 4
MOST_BYTES = 24  # of such a span


class Spelling:
    """The tokens of a vocabulary by what they spell. token_bytes: of each, b"" for what is no text."""

    def __init__(self, token_bytes: Sequence[bytes]) -> None:
        self._bytes = token_bytes
        self._tokens: dict[bytes, int] = {}
        for token, spelled in enumerate(token_bytes):
            if spelled:
                self._tokens.setdefault(spelled, token)

    def recovered(self, tokens: Sequence[int], chunks: Sequence[Chunk]) -> tuple[list[int], int]:
        """Return the tokens in the pieces that the chunks are of, and how many chunks were found to be of them."""
        found = list(tokens)
        for number, chunk in enumerate(chunks):
            start = max(0, number * CHUNK - 1)
            end = number * CHUNK + chunk.rows - 1
            if end > len(found):
                return found, number
            if digest_after(hashed(found[:start]), found[start:end]) == chunk.tokens:
                continue
            fitting = self._fitting(found, start, end, chunk.tokens)
            if fitting is None:
                return found, number
            found = fitting
        return found, len(chunks)

    def _fitting(self, tokens: list[int], start: int, end: int, digest: bytes) -> list[int] | None:
        """With one span of the chunk, which is from `start` to `end`, in other pieces; None if no such pieces fit."""
        before = hashed(tokens[:start])
        for at in range(start, end):
            lead = tokens[start:at]
            for span in range(1, MOST_SPAN + 1):
                spelled = b"".join(self._bytes[token] for token in tokens[at : at + span])
                if len(spelled) > MOST_BYTES or at + span > len(tokens):
                    break
                for pieces in self._pieces(spelled, MOST_PIECES):
                    tail = tokens[at + span : at + span + end - at]
                    if digest_after(before, [*lead, *pieces, *tail][: end - start]) == digest:
                        return [*tokens[:at], *pieces, *tokens[at + span :]]
        return None

    def _pieces(self, spelled: bytes, most: int) -> Iterator[list[int]]:
        whole = self._tokens.get(spelled)
        if whole is not None:
            yield [whole]
        if most > 1:
            for cut in range(1, len(spelled)):
                first = self._tokens.get(spelled[:cut])
                if first is not None:
                    for rest in self._pieces(spelled[cut:], most - 1):
                        yield [first, *rest]
