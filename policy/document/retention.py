"""How long something is kept: `12mo`, `184d`, `none`, `encrypted, 30d`.

Commitments of answers (`models.commitments`) have a period of their own: they are of use without the content, and only
for as long as someone may question an answer.

Two laws pull here. GDPR 5(1)(e) sets a ceiling: no longer than needed. AI Act 19(1) and 26(6) set a floor for high-risk
systems: logs for at least six months. The floor binds metadata only, which by design holds no personal value; content
has no floor. So the conflict is resolved by keeping metadata longer and saying so, never by keeping content.
"""

import re
from dataclasses import dataclass, replace

HIGH_RISK_FLOOR_DAYS = 184  # the longest six calendar months (March to August, July to December)
MAX_DAYS = 10 * 366

_PERIOD = re.compile(r"([1-9][0-9]{0,4})\s?(d|mo|y)")
_ENCRYPTED = re.compile(r"encrypted\s*,\s*(\S.*)")


@dataclass(frozen=True, slots=True)
class RetentionClass:
    """Days to keep each kind of record; 0 is not at all. ``because`` explains a figure that the policy did not set.
    ``commitment_days``: of commitments to activations, 0 where the policy asks for none."""

    metadata_days: int
    content_days: int
    because: str = ""
    commitment_days: int = 0

    def __str__(self) -> str:
        content = f"content encrypted {self.content_days} d" if self.content_days else "content none"
        commitments = f", commitments encrypted {self.commitment_days} d" if self.commitment_days else ""
        return f"metadata {self.metadata_days} d, {content}{commitments}"


def parse_days(text: str) -> int:
    """Days in ``184d``, ``12mo`` (a twelfth of 365 days each, rounded down), ``2y`` or ``none``. Raises ValueError."""
    if text == "none":
        return 0
    if not (match := _PERIOD.fullmatch(text)):
        raise ValueError(f"{text!r} is no period; write none, or a number with d, mo or y, such as 184d or 12mo")
    count = int(match[1])
    days = {"d": count, "mo": count * 365 // 12, "y": count * 365}[match[2]]
    if days > MAX_DAYS:
        raise ValueError(f"{text!r} is longer than ten years; give a shorter period")
    return days


def parse_content_days(text: str) -> int:
    """Days in ``none`` or ``encrypted, 30d``. Content is never kept in clear (GDPR 32(1)(a)). Raises ValueError."""
    if text == "none":
        return 0
    if not (match := _ENCRYPTED.fullmatch(text)):
        raise ValueError(f"{text!r}: content is kept encrypted or not at all; write none, or encrypted, 30d")
    if not (days := parse_days(match[1])):
        raise ValueError("encrypted content of no days is not kept; write none")
    return days


def parse_commitment_days(text: str) -> int:
    """Days in a period; commitments that are not kept could never be compared with anything. Raises ValueError."""
    if not (days := parse_days(text)):
        raise ValueError("commitments of no days are of no use; give a period, or leave models.commitments out")
    return days


def with_high_risk_floor(retention: RetentionClass) -> RetentionClass:
    """What a high-risk activity's records get under this retention."""
    if retention.metadata_days >= HIGH_RISK_FLOOR_DAYS:
        return retention
    because = (
        f"metadata is kept {HIGH_RISK_FLOOR_DAYS} d and not {retention.metadata_days} d: the activity is high-risk, "
        "its logs are due for six months (AI Act 19(1), 26(6)); they hold no personal value (GDPR 5(1)(e))"
    )
    return replace(retention, metadata_days=HIGH_RISK_FLOOR_DAYS, because=because)
