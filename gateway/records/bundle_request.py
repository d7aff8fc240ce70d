"""How a cell asks another for its bundle: a request signed with the key of its own record.

Neither cell keeps a secret of the other: each knows the other's verifier key. A request is valid for a minute and for
the one answer that its asker may have; overheard and repeated it yields what TLS kept to itself the first time.
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
    """The question is not of that cell, not for this one, or not of now."""

    fix = "check the key and the name of the cell"

    def __init__(self, message: object = "") -> None:
        text = str(message)
        super().__init__(f"{text}; {self.fix}" if self.fix and "; " not in text else text)


def key_name(cell: str) -> str:
    return f"{trust_domain(cell)}/audit"


def ask(peer: str, home: str, at: float, signer: NoteSigner) -> str:
    """`peer` asks `home`, at `at` seconds since 1970. Raises SignerError."""
    return sign_note(f"{KIND}\n{peer}\n{home}\n{int(at)}\n{token_hex(16)}\n", key_name(peer), signer)


def asker(question: str) -> str:
    """Who asks, before anything is known to be true of it. Raises PullRefused."""
    lines = question.split("\n", 3)
    if len(lines) < 4 or lines[0] != KIND:
        raise PullRefused("not a question for a bundle")
    return lines[1]


def check_question(question: str, key: VerifierKey, *, peer: str, home: str, now: float) -> None:
    """Raises PullRefused."""
    try:
        lines = open_note(question, [key]).split("\n")
    except NoteError as error:
        raise PullRefused(f"its signature does not hold: {error}") from error
    if key.name != key_name(peer) or len(lines) != 6 or lines[:3] != [KIND, peer, home] or not lines[3].isdecimal():
        raise PullRefused("it is another cell's, or for another")
    if abs(now - int(lines[3])) > GOOD_FOR_S:
        raise PullRefused("it is not of now; compare the clocks of the two cells")
