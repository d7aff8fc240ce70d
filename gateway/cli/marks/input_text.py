"""Input texts of the commands for marks."""

from pathlib import Path

from gateway.cli.terminal.shell import fail

NOT_TESTED = 2
MAX_BYTES = 4 << 20


def read_text(file: Path) -> str:
    """Return the text of a file. Ends the command with NOT_TESTED if it cannot be read as UTF-8 text."""
    try:
        if file.stat().st_size > MAX_BYTES:
            fail(f"{file} has more than {MAX_BYTES >> 20} MB; give the part that is in question", NOT_TESTED)
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        fail(f"{file} is not text in UTF-8; convert it first", NOT_TESTED)
    except OSError as error:
        fail(f"{file} cannot be read: {error.strerror}; name a readable text file", NOT_TESTED)
