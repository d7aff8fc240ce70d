"""Log lines on stderr, one for each message: text within a message cannot forge a second line (CWE-117)."""

import logging
import sys

FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"


class SingleLineFormatter(logging.Formatter):
    """Escapes in messages what is not printable: line breaks, terminal escapes, marks that turn text around.

    A traceback, which is ours, keeps its lines.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = printable(record.message)
        return super().formatMessage(record)


def printable(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def log_to_stderr(level: int, form: str = FORMAT) -> None:
    """Unless logging was set up already."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(SingleLineFormatter(form))
    logging.basicConfig(level=level, handlers=[handler])
