"""Everything `gateway.store` raises on purpose.

StoreError
├── DatabaseUnavailable   the database cannot be opened, read or written
└── ControlError          an administrator asked for something that cannot be done; nothing was changed
    ├── NotFound
    ├── Duplicate
    ├── Stale             it was changed since the caller last saw it
    ├── NotReady          what it waits for has not happened, or it is past that
    │   └── NotIndependent    two people decide, and one of them may have been invented by the other
    └── Invalid           a name, value or policy document is wrong
        └── InvalidValue  a value that no state of the installation could accept: its form, or a contradiction
"""


class StoreError(Exception):
    """Base of the control store's errors."""


class DatabaseUnavailable(StoreError):
    """The database cannot be opened, read or written."""


class ControlError(StoreError):
    """An administrator asked for something that cannot be done; nothing was changed."""


class NotFound(ControlError):
    """It does not exist, or not in this tenant. `name`: what is missing, a tenant or a project of `tenant`."""

    def __init__(self, message: str, *, name: str | None = None, tenant: str | None = None) -> None:
        super().__init__(message)
        self.name, self.tenant = name, tenant


class Duplicate(ControlError):
    """It exists already."""


class Stale(ControlError):
    """It was changed since the caller last saw it."""


class NotReady(ControlError):
    """What it waits for has not happened yet, or it is past that."""


class NotIndependent(NotReady):
    """Two people decide, and one of them may have been invented by the other."""


class Invalid(ControlError):
    """A name, value or policy document is wrong."""


class InvalidValue(Invalid):
    """The form of a value is wrong, or two values contradict each other: no state of the installation accepts it."""
