"""What is said in a message stays one line of the log."""

import io
import json
import logging
from datetime import datetime

import pytest

from gateway.server.logs.log_lines import FIELDS, FORMAT, JsonFormatter, SingleLineFormatter


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


@pytest.fixture
def as_json():
    out, logger = io.StringIO(), logging.Logger("domicile.test")
    handler = logging.StreamHandler(out)
    handler.setFormatter(JsonFormatter())
    logger.addHandler(handler)
    return logger, lambda: [json.loads(line) for line in out.getvalue().splitlines()]


def test_a_message_is_one_json_object_on_one_line(as_json):
    logger, lines = as_json
    logger.warning("it is\n%s \u2028 \ud800", "broken")
    (line,) = lines()
    assert (line["level"], line["logger"], line["message"].splitlines()[0]) == ("warning", "domicile.test", "it is")
    assert datetime.fromisoformat(line["time"]).tzinfo is not None


def test_named_values_are_members_that_replace_none_of_the_lines_own(as_json):
    logger, lines = as_json
    logger.info("over", extra={FIELDS: {"tenant": "acme", "level": "forged", "what": object()}})
    (line,) = lines()
    assert (line["tenant"], line["level"]) == ("acme", "info")


def test_a_traceback_is_a_member(as_json):
    logger, lines = as_json
    try:
        raise ValueError("why")
    except ValueError:
        logger.exception("it failed")
    (line,) = lines()
    assert "ValueError: why" in line["exception"]
    assert line["message"] == "it failed"
