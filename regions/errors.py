"""Everything `regions` raises on purpose.

RegionsError
├── CatalogueError      the catalogue is wrong, or a place or operator is not in it
├── IdentityError       not an identity of the grammar in `regions.identity.identity`
├── AuthorityError      the certificate authority cannot be created, read or used
├── IsolationError      a backend of another tenant, or outside the decision, was about to be used
├── ClusterError        Kubernetes did not do what it was asked
└── LaunchError         a backend did not start, or does not run
"""


class RegionsError(Exception):
    """Base of this room's errors."""


class CatalogueError(RegionsError):
    """The catalogue is wrong, or a place or operator is not in it."""


class IdentityError(RegionsError, ValueError):
    """Not an identity of the grammar in `regions.identity.identity`."""


class AuthorityError(RegionsError):
    """The certificate authority cannot be created, read or used."""


class IsolationError(RegionsError):
    """A backend of another tenant, or one outside the decision, was about to be used."""


class LaunchError(RegionsError):
    """A backend did not start, or does not run; the message ends with the last lines of its log."""


class ClusterError(RegionsError):
    """Kubernetes cannot be reached, or refused; the message is its own."""
