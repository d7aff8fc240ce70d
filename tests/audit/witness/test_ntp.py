import json
import struct
import sys

import pytest
from typer.testing import CliRunner

from audit.cli.app import app
from audit.errors import AuditError
from audit.witness.ntp import ClockState, clock_state, parse
from tests.audit.conftest import Home, accepted


def timex(offset: int, error: int, status: int) -> bytes:
    raw = bytearray(256)
    struct.pack_into("l", raw, 8, offset)
    struct.pack_into("l", raw, 24, error)
    struct.pack_into("i", raw, 40, status)
    return bytes(raw)


@pytest.mark.parametrize(
    ("code", "raw", "state"),
    [
        (0, timex(-12_400, 30_000, 0), ClockState(True, -12, 30)),
        (0, timex(12_400_000, 30_000, 0x2000), ClockState(True, 12, 30)),
        (5, timex(0, 16_000_000, 0x0040), ClockState(False, 0, 16_000)),
        (0, timex(0, 16_000_000, 0x0040), ClockState(False, 0, 16_000)),
        (5, timex(0, 0, 0), ClockState(False, 0, 0)),
    ],
)
def test_the_kernels_words_are_read_in_its_units(code: int, raw: bytes, state: ClockState) -> None:
    assert parse(code, raw) == state


@pytest.mark.skipif(sys.platform != "linux", reason="adjtimex is of Linux")
def test_this_machine_tells_how_right_its_clock_is() -> None:
    assert clock_state().max_error_ms >= 0


def test_elsewhere_it_is_said_to_be_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    with pytest.raises(AuditError, match="Linux only"):
        clock_state()


@pytest.fixture
async def written(home: Home) -> Home:
    async with home.context() as context:
        await context.record(accepted("a"))
    return home


def test_the_state_of_the_clock_goes_on_record(written: Home) -> None:
    done = CliRunner().invoke(app, ["clock", "--data", str(written.path.parent.parent), "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    (event,) = (event for event in written.events("_system") if event["type"] == "system.clock")
    assert (event["synchronised"], event["offset_ms"]) == (told["synchronised"], told["offset_ms"])
