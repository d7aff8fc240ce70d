"""What the commands of `domicile audit` share: where the log is, how they fail, what may reach a terminal."""

import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from audit.errors import AuditError, FormError, SignerError
from audit.events.base import CODE_PATTERN
from audit.files.reasons import describe_os_error
from audit.files.untrusted_file import read_untrusted
from audit.keys.owner_keys import FileKeyProvider, KeyProvider
from audit.keys.signer import FileSigner, Signer
from audit.law.deadlines import rfc3339_of
from audit.log.walk import checked_moment
from audit.private.value_location import KEYS, wrapped_keys

if TYPE_CHECKING:
    from audit.cli.over_api import Api
    from audit.witness.rotation import Replacement

DATA_VARIABLE = "DOMICILE_DATA"
DEFAULT_DATA = Path("domicile-data")
LOG_IN_DATA = Path("audit/log.db")
PIPE_WIDTH = 240
MAX_GIVEN = 1 << 20
"""Bytes of a key or checkpoint that is given in a file."""
PROGRESS_FROM = 20_000  # records; below, the answer is there before the bar

REFUSED, USAGE = 1, 2
"""Exit statuses; 2 is also that of Click for an option or argument that there is not."""

KeysAndSigner = tuple[KeyProvider, Signer]


def open_from_files(log: Path) -> KeysAndSigner:
    keys = log.parent / KEYS
    return FileKeyProvider.open(keys, wrapped_keys(keys)), FileSigner.open(log.with_name("signer.key"))


open_keys: ContextVar[Callable[[Path], KeysAndSigner]] = ContextVar("open_keys", default=open_from_files)
"""How the keys and the signer of a log are had; a program that keeps them elsewhere sets it before a command runs."""


def replace_in_file(log: Path, to: str | None) -> "Replacement":
    """Raises SignerError if `to` names another place than a file."""
    from audit.witness.rotation import in_file  # with the log, which most commands do not need

    if to not in (None, "file"):
        raise SignerError(
            f"the signing key cannot be moved to {to}, since this program knows keys in files only; leave --to out"
        )
    return in_file(log.with_name("signer.key"))


open_replacement: ContextVar["Callable[[Path, str | None], Replacement]"] = ContextVar(
    "open_replacement", default=replace_in_file
)
"""How the signing key of a log is replaced, by its path and the place of the new key (None: the configured one)."""

elsewhere: ContextVar[Callable[[Path | None], "Api | None"]] = ContextVar("elsewhere", default=lambda data: None)
"""The admin API of the installation that a command with this data folder is for; None where that is on this host."""

DataOption = Annotated[
    Path | None,
    typer.Option(
        "--data", help="Data folder of the gateway (default: ./domicile-data).", envvar=DATA_VARIABLE, show_envvar=True
    ),
]
SinceOption = Annotated[str | None, typer.Option("--since", help="UTC, to any precision: 2026-03-01T12.")]
UntilOption = Annotated[str | None, typer.Option("--until", help="UTC; not included.")]
JsonOption = Annotated[bool, typer.Option("--json", help="For machines.")]


@contextmanager
def reporting_errors(as_json: bool) -> Iterator[None]:
    """An error ends the command with a sentence: exit status 2 for a value that no record accepts, else 1."""
    try:
        yield
    except UsageMistake as error:
        fail(str(error), as_json, USAGE)
    except ValidationError as error:
        fail(describe_invalid(error), as_json, USAGE)
    except OSError as error:
        fail(describe_os_error(error), as_json)
    except FormError as error:
        sentence = str(error)
        fail(sentence if "; " in sentence else f"{sentence}; give an intact key, checkpoint or proof", as_json)
    except (AuditError, ValueError) as error:
        fail(str(error), as_json)


class UsageMistake(AuditError):
    """The command as it is written cannot be run: a value of a wrong form, or options that contradict each other."""


OPTIONS = {
    "ai_system_id": "--system",
    "authority": "--authority",
    "country": "--country",
    "legal_basis": "--basis",
    "matter_id": "--matter",
    "model": "--model",
    "outcome": "--outcome",
    "reason": "--reason",
}
"""Fields of events by the options that set them."""


def describe_invalid(error: ValidationError) -> str:
    """The first field of an event that is wrong, and what it may be; never its value, which may be private."""
    first = error.errors(include_url=False)[0]
    field, context = str(first["loc"][0]) if first["loc"] else "event", first.get("ctx", {})
    field = OPTIONS.get(field, field)
    if context.get("pattern") == CODE_PATTERN:
        return f"{field} is not a code; write it in lower-case letters, digits, _, . and -"
    return f"{field} is not valid; {first['msg'][:1].lower()}{first['msg'][1:]}"


def given_period(since: str | None, until: str | None) -> tuple[str | None, str | None]:
    """The bounds of a period, as records are compared with them. Raises UsageMistake, which names the option."""
    return _bound("--since", since), _bound("--until", until)


def _bound(option: str, text: str | None) -> str | None:
    try:
        return None if text is None else checked_moment(text)
    except AuditError:
        raise UsageMistake(
            f"{option} {text!r} is no moment; write 2026-03, 2026-03-01 or 2026-03-01T12:00:00Z"
        ) from None


def given_utc(option: str, text: str | None) -> str | None:
    """A moment in UTC with milliseconds. Raises UsageMistake, which names the option, also for one without its zone."""
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            raise UsageMistake(
                f"{option} {text!r} has no time zone; write 2026-03-01T09:30:00Z, or 2026-03-01T10:30:00+01:00"
            )
        return rfc3339_of(moment)
    except (ValueError, OverflowError):
        raise UsageMistake(f"{option} {text!r} is no moment; write 2026-03-01T09:30:00Z") from None


def given_code(name: str, text: str) -> str:
    """A code that is recorded unchanged. Raises UsageMistake, which names the option, for other text."""
    if not re.fullmatch(CODE_PATTERN, text):
        raise UsageMistake(f"{name} {text!r} is not a code; write it in lower-case letters, digits, _, . and -")
    return text


def fail(sentence: str, as_json: bool, status: int = REFUSED) -> NoReturn:
    if as_json:
        typer.echo(json.dumps({"ok": False, "error": sentence}))
    else:
        typer.echo(f"error: {printable(sentence)}", err=True)
    raise typer.Exit(status)


def read_given(file: Path) -> str:
    """The text of a small file that the caller names: a key, a checkpoint. Raises OSError, ValueError."""
    return read_untrusted(file, MAX_GIVEN, follow_links=True).decode()


@contextmanager
def progress_bar(total: int, *, hidden: bool) -> Iterator[Callable[[int], None]]:
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(
        *columns, console=Console(stderr=True), transient=True, disable=hidden or total < PROGRESS_FROM
    ) as bar:
        task = bar.add_task("records", total=total)
        yield lambda count: bar.advance(task, count)


def console() -> Console:
    """As wide as the terminal; a pipe has no width to fit."""
    return Console() if sys.stdout.isatty() else Console(width=PIPE_WIDTH)


def printable(text: str) -> str:
    """A record holds what a client sent, a forged one anything: no escape sequence of it may reach the terminal."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
