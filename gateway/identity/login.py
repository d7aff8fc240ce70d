"""A login at the identity provider, and its errors.

ProviderUnavailable   it does not answer, or not as the standards say
CodeRefused           it did not accept the code that a login came back with
"""

import secrets
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

FRESH: Final = timedelta(minutes=15)
"""How long somebody who showed who they are may do what cannot be undone."""


class ProviderUnavailable(Exception):
    """The identity provider does not answer, or not as the standards require; logging in through it is not possible
    now."""

    fix = "try again, and report it to the operator if it returns"

    def __init__(self, message: object = "") -> None:
        text = str(message)
        super().__init__(text if "; " in text else f"{text}; {self.fix}")


class CodeRefused(Exception):
    """The identity provider did not accept the code: it was used, has expired, or belongs to another login."""


@dataclass(frozen=True, slots=True)
class LoginAttempt:
    """A login that was begun. Each value is random, used once, and of use only to the browser that holds it."""

    state: str
    nonce: str = field(repr=False)
    verifier: str = field(repr=False)

    @classmethod
    def new(cls) -> "LoginAttempt":
        return cls(*(secrets.token_urlsafe(32) for _ in range(3)))
