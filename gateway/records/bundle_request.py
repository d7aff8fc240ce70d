"""Request of a cell for another cell's bundle, signed with the key of the requesting cell's record.

The cells share no secret; each knows the other's verifier key. A request is valid for one minute and only for the
bundle addressed to the requesting cell, so a replay returns only that bundle.
"""

from secrets import token_hex

from audit.errors import NoteError
from audit.tree.note import NoteSigner, VerifierKey, open_note, sign_note
from regions.identity.identity import trust_domain

KIND = "domicile pull v1"
GOOD_FOR_S = 60
PATH = "/cells/v1/bundle"
MAX_QUESTION = 2048


class PullRefused(ValueError):
    """The request has another sender or receiver, a bad signature, or a time outside the accepted window."""

    fix = "check the key and the name of the cell"

    def __init__(self, message: object = "") -> None:
        text = str(message)
        super().__init__(f"{text}; {self.fix}" if self.fix and "; " not in text else text)


def key_name(cell: str) -> str:
    return f"{trust_domain(cell)}/audit"


def ask(peer: str, home: str, at: float, signer: NoteSigner) -> str:
    """Return the signed request of cell `peer` to cell `home`. at: seconds since 1970. Raises SignerError."""
    return sign_note(f"{KIND}\n{peer}\n{home}\n{int(at)}\n{token_hex(16)}\n", key_name(peer), signer)


def asker(question: str) -> str:
    """Return the cell that the request names as its sender, unverified. Raises PullRefused for a malformed request."""
    lines = question.split("\n", 3)
    if len(lines) < 4 or lines[0] != KIND:
        raise PullRefused("not a question for a bundle")
    return lines[1]


def check_question(question: str, key: VerifierKey, *, peer: str, home: str, now: float) -> None:
    """Check signature, sender, receiver and time of a request. now: seconds since 1970. Raises PullRefused."""
    try:
        lines = open_note(question, [key]).split("\n")
    except NoteError as error:
        raise PullRefused(f"its signature does not hold: {error}") from error
    if key.name != key_name(peer) or len(lines) != 6 or lines[:3] != [KIND, peer, home] or not lines[3].isdecimal():
        raise PullRefused("it is another cell's, or for another")
    if abs(now - int(lines[3])) > GOOD_FOR_S:
        raise PullRefused("it is not of now; compare the clocks of the two cells")
