"""What verification of a log can find wrong, in one form for every check."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

Check = Literal[
    "sequence",
    "hash",
    "form",
    "tenant",
    "tree",
    "signature",
    "root",
    "rollback",
    "pairing",
    "intents",
    "clock",
    "expired",
    "keys",
    "unsigned",
    "anchor",
    "witness",
    "timestamp",
]
Severity = Literal["error", "warning"]


class Finding(BaseModel):
    """One thing that is not as it should be. `seq` is the record concerned, if it is one."""

    model_config = ConfigDict(frozen=True)

    tenant: str
    check: Check
    says: str
    seq: int | None = None
    severity: Severity = "error"
