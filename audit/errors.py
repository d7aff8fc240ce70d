"""Errors of `audit`.

AuditError
├── AuditUnavailable     nothing may be promised: refuse the call (503), send nothing anywhere
├── EventRejected        this one event cannot be recorded; the log itself is well
├── FormError            something that was given does not hold
│   ├── CanonicalError   the value has no RFC 8785 form, or the bytes are not in it
│   ├── ProofError       a Merkle proof does not lead where it claims to
│   ├── NoteError        a signed note or verifier key is malformed or not signed by the key expected
│   └── CommitmentError  a value shown is not the one a leaf commits to
├── VerificationFailed   what was presented is not what the log holds or signed
├── HeldError            a legal hold forbids the deletion
├── RestrictedError      the data may be kept but not used (GDPR 18)
├── SignerError          the signing key is missing, unsafe or out of reach
├── TimestampError       no RFC 3161 timestamp was had, or one that does not hold
├── WitnessError         a witness is out of reach, refuses, or answers what does not hold
├── KeyProviderError     the keys above the value store are missing, unsafe or out of reach
│   └── KeyLost          ... for good: what they protected is not readable any more
└── StoreError           the data file could not be read or written; what was being written is not durable
    ├── NoLog            ... because there is none yet
    ├── StoreFull        ... for want of space, and nothing of it was kept
    └── KeysOutOfReach   ... for want of a tenant's key, which another time may be had
"""

from typing import ClassVar


class AuditError(Exception):
    """Base class; the message is for an operator, holds no content and has the form ``<what>; <how to fix it>``.

    `fix` is the remedy of every message of the class that names none itself.
    """

    fix: ClassVar[str] = ""

    def __init__(self, message: object = "") -> None:
        text = str(message)
        super().__init__(f"{text}; {self.fix}" if self.fix and "; " not in text else text)


class AuditUnavailable(AuditError):
    """The record cannot be kept now. Fail closed: the caller must not do what it wanted to record."""


class EventRejected(AuditError):
    """The event breaks a rule of the record: too large, a second outcome, an outcome without an intent."""


class FormError(AuditError, ValueError):
    """A value or proof that was given does not hold. Names no remedy: only the caller knows where the value is from."""


class CanonicalError(FormError):
    pass


class ProofError(FormError):
    pass


class NoteError(FormError):
    pass


class VerificationFailed(AuditError):
    pass


class CommitmentError(FormError):
    pass


class HeldError(AuditError):
    """`hold_ids` are the holds that prevent it."""

    def __init__(self, hold_ids: tuple[str, ...]) -> None:
        super().__init__(
            f"nothing was deleted: legal hold {', '.join(hold_ids)} is in force"
            "; release it first with `domicile audit hold release`"
        )
        self.hold_ids = hold_ids


class RestrictedError(AuditError):
    pass


class SignerError(AuditError):
    pass


class TimestampError(AuditError):
    """`reason` is a code: unreachable, malformed, refused, wrong_nonce, wrong_imprint, untrusted."""

    def __init__(self, reason: str, says: str) -> None:
        super().__init__(says)
        self.reason = reason


class WitnessError(AuditError):
    pass


class KeyProviderError(AuditError):
    pass


class KeyRefused(KeyProviderError):
    """Who holds the key does not let us use it, or has it no more: what was opened with it is forgotten at once."""


class KeyLost(KeyProviderError):
    pass


class StoreError(AuditError):
    pass


class NoLog(StoreError):
    pass


class StoreFull(StoreError):
    pass


class KeysOutOfReach(StoreError):
    pass


def wrong_format(what: str, version: object, known: int) -> StoreError:
    """For a database of a format that this program does not read, as one that a newer version has migrated."""
    return StoreError(
        f"{what} has format {version}, this program reads format {known}; start the version of Domicile that made it,"
        " or restore a backup that this version made"
    )
