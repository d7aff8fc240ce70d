import uuid

import pytest

from audit.events.stamp import Stamp, Stamper, rfc3339, uuid7


def test_a_uuid7_carries_its_time_version_and_variant() -> None:
    value = uuid.UUID(uuid7(0x0123456789AB))
    assert value.int >> 80 == 0x0123456789AB
    assert value.version == 7
    assert value.variant == uuid.RFC_4122


def test_uuid7s_differ_within_a_millisecond_and_sort_by_time() -> None:
    assert len({uuid7(5) for _ in range(1000)}) == 1000
    assert uuid7(5) < uuid7(6)


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (951_782_400_007, "2000-02-29T00:00:00.007Z"),
        (1_798_761_599_999, "2026-12-31T23:59:59.999Z"),
    ],
)
def test_time_is_written_in_utc_with_milliseconds(milliseconds: int, text: str) -> None:
    assert rfc3339(milliseconds) == text


def test_a_stamper_writes_what_a_stamp_accepts() -> None:
    fields = Stamper("gw-1", uuid7(1), lambda: 1_798_761_599.9996).fields()
    assert Stamp.model_validate(fields).ts == "2026-12-31T23:59:59.999Z"
