"""A person's record: a row whose cells hold an e-mail address, a phone, and numbers that no heading names."""

import re

from policy.redact.phone import countries_of_number
from policy.redact.reading import Reading

_LONGEST_ROW = 600
_CELL_BEFORE = re.compile(r"([;,|\t]) ?[\"']?\Z")
_CELL_AFTER = re.compile(r"[\"']? ?(?:[;,|\t]|\r?\n|\Z)")
_PHONE = re.compile(r"\+?\(?[0-9][0-9 ()./-]{5,18}[0-9]")


def countries_of_record(reading: Reading, begin: int, end: int) -> frozenset[str] | None:
    """Countries whose plans know the phone of the record that ``text[begin:end]`` is a later cell of.

    None where it is no cell, or its row holds no e-mail address and no phone before it.
    """
    first = max(reading.rfind("\n", 0, begin) + 1, begin - _LONGEST_ROW)
    before = _CELL_BEFORE.search(reading, first, begin)
    if before is None or not _CELL_AFTER.match(reading, end):
        return None
    cells = [cell.strip(" \"'") for cell in reading[first : before.start()].split(before[1])]
    phones = [cell for cell in cells if _PHONE.fullmatch(cell)]
    if not phones or not any("@" in cell for cell in cells):
        return None
    return countries_of_number(phones[-1])
