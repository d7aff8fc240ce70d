"""What is said in a message stays one line of the log."""

import io
import logging

import pytest

from gateway.server.log_lines import FORMAT, SingleLineFormatter


@pytest.fixture
def logged():
    out, logger = io.StringIO(), logging.Logger("test")
    handler = logging.StreamHandler(out)
    handler.setFormatter(SingleLineFormatter(FORMAT))
    logger.addHandler(handler)
    return logger, out.getvalue


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("plain, naïve, 数据", "plain, naïve, 数据"),
        ("a\nWARNING domicile.gateway forged", r"a\nWARNING domicile.gateway forged"),
        ("a\r\nb", r"a\r\nb"),
        ("\x1b[2J\x1b]0;x\x07", r"\x1b[2J\x1b]0;x\x07"),
        ("a\u2028b\u2029c\x85d", r"a\u2028b\u2029c\x85d"),
        ("abc\u202etxt.exe", r"abc\u202etxt.exe"),
        ("nul\x00", r"nul\x00"),
    ],
)
def test_a_message_is_one_line_that_moves_no_cursor(logged, said, shown):
    logger, told = logged
    logger.warning("the policy does not compile: %s", said)
    assert told().endswith(f"WARNING test the policy does not compile: {shown}\n")
    assert len(told().splitlines()) == 1


def test_a_traceback_keeps_its_lines(logged):
    logger, told = logged
    try:
        raise ValueError("no")
    except ValueError:
        logger.exception("failed")
    assert "\nTraceback (most recent call last):\n" in told()
