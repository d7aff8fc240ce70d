"""How much work the output filter would have with a text: an estimate, to decide where it runs.

The filter passes plain words by at once and looks closely at digits, at `@` and at names of secrets. The figures are
CPU microseconds of the costliest texts found for each (`bench/gateway/stalls.py`), so a text rarely costs more.
"""

from policy.redact.detectors.secrets import count_names
from policy.redact.text.normalise import lowered

_CHARACTER = 0.15
_NAME = 120.0
_SIGNS = {**dict.fromkeys("0123456789@", 40.0), "://": 60.0, "-----": 30.0}


def effort_us(text: str) -> float:
    """CPU microseconds that the output filter takes for `text` at the most, by estimate."""
    signs = sum(text.count(sign) * each for sign, each in _SIGNS.items())
    return len(text) * _CHARACTER + signs + count_names(lowered(text)) * _NAME
