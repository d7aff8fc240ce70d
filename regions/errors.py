"""Everything `regions` raises on purpose.

RegionsError
├── CatalogueError      the catalogue is wrong, or a place or operator is not in it
├── IdentityError       not an identity of the grammar in `regions.identity.identity`
├── AuthorityError      the certificate authority cannot be created, read or used
├── IsolationError      a backend of another tenant, or outside the decision, was about to be used
├── ClusterError        Kubernetes did not do what it was asked
└── LaunchError         a backend did not start, or does not run

Messages have the form ``<what>; <how to fix it>``: the fix is in the message, or in the class for all its
messages (`fix`).
"""

from typing import ClassVar


class RegionsError(Exception):
    """Base of all of them. `fix`: the remedy of every message of the class that names none itself."""

    fix: ClassVar[str] = ""

    def __init__(self, message: object = "") -> None:
        text = str(message)
        super().__init__(f"{text}; {self.fix}" if self.fix and "; " not in text else text)


class CatalogueError(RegionsError):
    """The catalogue is wrong, or a place or operator is not in it."""


class IdentityError(RegionsError, ValueError):
    """Not an identity of the grammar in `regions.identity.identity`."""


class AuthorityError(RegionsError):
    """The certificate authority cannot be created, read or used."""


class IsolationError(RegionsError):
    """A backend of another tenant, or one outside the decision, was about to be used."""

    fix = "report it to the operator, no call was sent"


class LaunchError(RegionsError):
    """A backend did not start, or does not run; the message ends with the last lines of its log."""

    fix = "read the log of the backend"


class ClusterError(RegionsError):
    """Kubernetes cannot be reached, or refused; the message is its own."""
