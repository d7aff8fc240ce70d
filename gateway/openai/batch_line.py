"""The line of a batch that a call answers, where it is one."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BatchLine:
    """`number` counts the lines of the input file from 1. `custom_id`: the application's own name for the line, which
    may be personal data. `key_id`: the API key that made the batch, whose principal the call acts for."""

    batch: str
    number: int
    custom_id: str
    key_id: str
