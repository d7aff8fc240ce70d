"""Log lines on stderr, one for each message: text within a message cannot forge a second line (CWE-117)."""

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal

FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"
FIELDS = "fields"
"""Attribute of a log record: named values, members of a JSON line of their own."""


class SingleLineFormatter(logging.Formatter):
    """Escapes in messages what is not printable: line breaks, terminal escapes, marks that turn text around.

    A traceback, which is ours, keeps its lines.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = printable(record.message)
        return super().formatMessage(record)


class JsonFormatter(logging.Formatter):
    """One JSON object a message: `time` (RFC 3339, UTC), `level`, `logger`, `message`, where there was one the
    `exception` with its traceback, and named values of its own."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {
            "time": time.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        fields: Mapping[str, Any] = getattr(record, FIELDS, {})
        return json.dumps({**fields, **line}, default=str)  # escapes what is not ASCII, halves of characters too


def printable(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def log_to_stderr(level: int, form: str = FORMAT, kind: Literal["text", "json"] = "text") -> None:
    """Unless logging was set up already."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if kind == "json" else SingleLineFormatter(form))
    logging.basicConfig(level=level, handlers=[handler])


def say(text: str, level: int = logging.INFO) -> None:
    """Tell the operator what the program does now, or why it cannot: a line on stderr, JSON where the log is that."""
    if any(isinstance(handler.formatter, JsonFormatter) for handler in logging.getLogger().handlers):
        logging.getLogger("domicile").log(level, text)
    else:
        print(f"{'error' if level >= logging.ERROR else 'domicile'}: {text}", file=sys.stderr, flush=True)
