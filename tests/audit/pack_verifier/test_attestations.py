"""The time that a cosignature gives."""

import pytest

from audit.pack_verifier.attestations import clock
from audit.pack_verifier.fault import Broken


def test_a_time_is_told_in_utc() -> None:
    assert clock(1_800_000_000) == "2027-01-15T08:00:00Z"


@pytest.mark.parametrize("seconds", [2**63, 2**64 - 1])
def test_a_time_that_there_is_not_is_no_crash(seconds: int) -> None:
    with pytest.raises(Broken, match="no time"):
        clock(seconds)
