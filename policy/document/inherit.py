"""What a document extends, from the top down: a document names one preset, which may name another."""

from collections.abc import Callable

from policy.document.document import PolicyDocument
from policy.errors import PolicyDocumentError, Problem

MAX_BASES = 8

Library = Callable[[str], PolicyDocument]
"""A document by its name; raises KeyError for a name it does not have."""


def bases_of(document: PolicyDocument, library: Library) -> list[PolicyDocument]:
    """Everything above `document`, the topmost first.

    Raises PolicyDocumentError, with the line in the document that is at fault, for a name that is not there and for a
    circle.
    """
    chain = [document]
    while (name := chain[-1].extends) is not None:
        below = chain[-1]
        if name in [known.policy for known in chain]:
            way = " -> ".join([*(known.policy for known in chain), name])
            raise _wrong(below, f"the documents extend each other in a circle: {way}; remove one `extends`")
        if len(chain) > MAX_BASES:
            raise _wrong(below, f"more than {MAX_BASES} documents extend each other; shorten the chain")
        try:
            chain.append(library(name))
        except KeyError:
            raise _wrong(below, f"there is no document {name} to extend; name one of the library") from None
    return chain[:0:-1]


def _wrong(document: PolicyDocument, message: str) -> PolicyDocumentError:
    return PolicyDocumentError(Problem(document.line("extends"), "extends", message))
