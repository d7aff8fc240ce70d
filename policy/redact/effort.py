"""Estimate of the output filter's CPU time for a text, used to decide where it runs.

The filter skips plain words and examines digits, `@` and names of secrets in detail. The figures are CPU microseconds
of the most expensive texts found for each (`bench/gateway/stalls.py`), so a text rarely costs more.
"""

from policy.redact.detectors.secrets import count_names
from policy.redact.text.normalise import lowered

_CHARACTER = 0.15
_NAME = 120.0
_SIGNS = {**dict.fromkeys("0123456789@", 40.0), "://": 60.0, "-----": 30.0}


def effort_us(text: str) -> float:
    """Return the estimated maximum CPU time of the output filter for `text`, in microseconds."""
    signs = sum(text.count(sign) * each for sign, each in _SIGNS.items())
    return len(text) * _CHARACTER + signs + count_names(lowered(text)) * _NAME
