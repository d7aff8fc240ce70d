"""What the administration's commands share: their options, opening the store, and sentences for what goes wrong.

`gateway/cli/app.py` hands in, by ``obj=``, a `RecordAdmin`: the changes of a command are recorded through it before
they are committed. Without one they are not recorded.
"""

import os
import shlex
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import datetime
from decimal import Decimal, InvalidOperation
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from gateway.cli.terminal.lazy_group import running_command
from gateway.cli.terminal.printing import print_json, print_next

if TYPE_CHECKING:
    from gateway.cli.remote.api import AdminApi
    from gateway.cli.remote.record import RecordApi
    from gateway.cli.terminal.reports import Reports
    from gateway.database.database import Database
    from gateway.installation.installation import Installation
    from gateway.records.control import Record
    from gateway.store.change import OnEvent
    from gateway.store.control.control import Control
    from gateway.store.reports.inventory import Inventory

    RecordAdmin = Callable[[Installation], AbstractContextManager[OnEvent]]

ACTOR = "cli"
DEFAULT_DATA = Path("domicile-data")
REFUSED, USAGE = 1, 2
"""Exit statuses; 2 is also that of Click for an option or argument that there is not."""
MAX_TEXT = 1 << 20
"""Bytes of a certificate chain, a key or a policy that an option names."""

Data = Annotated[
    Path, typer.Option("--data", envvar="DOMICILE_DATA", show_envvar=True, help="Data folder of the installation.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Tenant = Annotated[str, typer.Argument(metavar="TENANT", help="Name of the tenant, as 'acme'.")]
OwnTenant = Annotated[
    str, typer.Argument(metavar="TENANT", help="Name of the tenant, or 'operator' for the installation's own.")
]
OfTenant = Annotated[str | None, typer.Argument(metavar="[TENANT]", help="Of this tenant only.")]
Project = Annotated[str, typer.Argument(metavar="PROJECT", help="Name of the project, as 'support'.")]
InProject = Annotated[str | None, typer.Option("--project", help="Of this project only.")]


OPERATOR_NAME = "operator"
"""What stands for the installation itself where a tenant is asked for; no tenant may be called so."""


def owner_of(tenant: str) -> str | None:
    """The tenant's name, or None where the installation itself is meant."""
    return None if tenant == OPERATOR_NAME else tenant


URL_VARIABLE = "DOMICILE_URL"


def remote_url(data: Path) -> str | None:
    """URL of the remote installation that a command is for; None where it is for the data folder. The one switch: what
    `DOMICILE_URL` names; else the folder, if one is named or lies here; else where the user logged in. Ends the command
    where both are named."""
    named, folder_named = os.environ.get(URL_VARIABLE), data != DEFAULT_DATA
    if named:
        if folder_named:
            fail(f"{URL_VARIABLE} and a data folder are both named; unset one of them", USAGE)
        return named
    if folder_named or data.exists():
        return None
    from gateway.cli.remote.credentials import current

    return current()


def remote_api(data: Path, *, deadline_s: float | None = None) -> "AdminApi | None":
    """Admin API of the remote installation that a command is for; None where it is for the data folder. deadline_s: for
    each request, if it may take longer than others."""
    return None if (url := remote_url(data)) is None else _remote_api(url, deadline_s)


def _remote_api(url: str, deadline_s: float | None = None) -> "AdminApi":
    """Ends the command where the user is not logged in there."""
    from gateway.cli.remote.api import DEADLINE_S, AdminApi, base_of
    from gateway.cli.remote.credentials import CredentialsError
    from gateway.cli.remote.sessions import fresh

    try:
        return AdminApi(fresh(base_of(url)), deadline_s or DEADLINE_S)
    except CredentialsError as error:
        fail(str(error))


def catalogue_elsewhere(data: Path | None) -> "Callable[..., Any] | None":
    """GET of the admin API of the installation that a command is for; None where that is here."""
    if (api := opened_api(data or Path(os.environ.get("DOMICILE_DATA") or DEFAULT_DATA))) is None:
        return None

    def ask(*path: str, **query: str | None) -> Any:
        with plain_errors():
            return api.get(*path, **query)

    return ask


def opened_api(data: Path) -> "AdminApi | None":
    """Admin API of the remote installation that a command is for; None where it is for the data folder."""
    return None if (url := remote_url(data)) is None else _remote_api(url)


def record_elsewhere(data: Path | None) -> "RecordApi | None":
    """For the commands of `audit`: the admin API of the installation that one is for; None where that is here."""
    if (api := opened_api(data or DEFAULT_DATA)) is None:
        return None
    from gateway.cli.remote.record import RecordApi

    return RecordApi(api)


def needs_folder(data: Path) -> None:
    """End a command that works on the files of an installation, where it would be for one elsewhere."""
    if (url := remote_url(data)) is not None:
        refuse_elsewhere(running_command(), url)


def refuse_elsewhere(command: str, url: str) -> NoReturn:
    """End a command of this name that is for `url` and cannot be."""
    from gateway.cli.terminal.host_only import why_host_only

    fail(f"`domicile {command}` {why_host_only(command)}, so not over {url}; run it on its host with --data")


@contextmanager
def opened_control(ctx: typer.Context, data: Path, *, cell: str | None = None) -> "Iterator[Control]":
    """`cell`: what the folder's has to be, if it is named. Of an installation elsewhere, what its admin API can do."""
    from gateway.installation.installation import Installation, InstallationError

    if (url := remote_url(data)) is not None:
        from gateway.cli.remote.control import RemoteControl

        with plain_errors():
            yield RemoteControl(_remote_api(url))  # type: ignore[misc]  # the same methods
        return
    with plain_errors():
        installation = Installation.open(data)
        if cell is not None and installation.cell != cell:
            raise InstallationError(
                f"{data} belongs to cell {installation.cell!r}, not {cell!r}; name the other cell's folder by --data"
            )
        record: RecordAdmin = ctx.obj or (lambda installation: nullcontext(lambda event: None))
        database = installation.database()
        try:
            installation.check_of_one_time(database)
            with _near_names(installation, database), record(installation) as on_event:
                yield installation.control(database, actor=ACTOR, on_event=on_event)
        finally:
            database.close()


@contextmanager
def opened_inventory(data: Path) -> "Iterator[Inventory]":
    """For a remote installation, by its admin API."""
    from gateway.installation.installation import Installation

    if (url := remote_url(data)) is not None:
        from gateway.cli.remote.remote_reports import RemoteInventory

        with plain_errors():
            yield RemoteInventory(_remote_api(url))  # type: ignore[misc]  # the same methods
        return
    with plain_errors():
        installation = Installation.open(data)
        database = installation.database()
        try:
            with _near_names(installation, database):
                yield installation.inventory(database)
        finally:
            database.close()


@contextmanager
def _near_names(installation: "Installation", database: "Database") -> Iterator[None]:
    """Suggest an existing name for one that does not exist. Only here: the API must not tell who else there is."""
    from gateway.database.errors import NotFound

    try:
        yield
    except NotFound as error:
        if error.name is None:
            raise
        inventory = installation.inventory(database)
        there_are = inventory.tenants() if error.tenant is None else inventory.projects(error.tenant)
        near = get_close_matches(error.name, [each.id for each in there_are], 1)
        raise NotFound(f"{error}; did you mean {near[0]!r}?" if near else str(error)) from error


@contextmanager
def plain_errors() -> Iterator[None]:
    """What an operator did wrong or can mend is a sentence, not a traceback."""
    from audit.errors import AuditError
    from audit.files.reasons import describe_os_error
    from gateway.configuration.settings import SettingsError
    from gateway.database.errors import InvalidValue, StoreError
    from gateway.installation.installation import InstallationError
    from regions.errors import RegionsError

    try:
        yield
    except InvalidValue as error:
        from gateway.cli.terminal.flags import by_flags

        fail(by_flags(str(error)), USAGE)
    except (InstallationError, StoreError, RegionsError, AuditError, SettingsError) as error:
        fail(str(error))
    except OSError as error:
        fail(describe_os_error(error))


@contextmanager
def opened_reports(data: Path) -> "Iterator[Reports]":
    """For a remote installation, by its admin API."""
    if (url := remote_url(data)) is not None:
        from gateway.cli.remote.remote_reports import RemoteReports

        with plain_errors():
            yield RemoteReports(_remote_api(url))  # type: ignore[misc]  # the same methods
        return
    from gateway.cli.terminal.reports import Reports

    with opened_database(data) as (installation, database):
        yield Reports(database, installation.cell)


@contextmanager
def opened_database(data: Path) -> "Iterator[tuple[Installation, Database]]":
    """For commands that work on the data folder alone."""
    from gateway.installation.installation import Installation

    needs_folder(data)
    with plain_errors():
        installation = Installation.open(data)
        database = installation.database()
        try:
            yield installation, database
        finally:
            database.close()


def policy_from(preset: str, policy: str) -> str:
    """A document called `policy`. Ends the command with `USAGE` for a preset that there is not."""
    from policy.presets import PRESETS
    from policy.presets.new_policy import new_document

    if preset not in PRESETS:
        fail(f"there is no preset {preset!r}; name one of {', '.join(PRESETS)}", USAGE)
    return new_document(policy, preset)


def print_next_step(data: Path, tenant: str, as_json: bool) -> None:
    """Which command brings `tenant` nearer to its first answer."""
    from gateway.store.reports.next_step import next_step

    if not as_json and remote_url(data) is None:
        with opened_database(data) as (_, database):
            command = next_step(database, tenant)
        print_next(with_folder(command, data), as_json)


def with_folder(command: str, data: Path) -> str:
    """The same for a folder that is not the default one, unless the environment names it already."""
    if data == DEFAULT_DATA or os.environ.get("DOMICILE_DATA") == str(data):
        return command
    return f"DOMICILE_DATA={shlex.quote(str(data))} {command}"


def print_secret(record: "Record", secret: str, what: str, as_json: bool, *, field: str = "key") -> None:
    """The record and what is shown this once: the secret alone on stdout, or both as JSON."""
    if as_json:
        print_json({**record.model_dump(mode="json"), field: secret})
        return
    typer.echo(f"{what}; it is shown this once:", err=True)
    typer.echo(secret)


def read_text(file: Path) -> str:
    """Text of a small ASCII file that an option names: a certificate, a key. Anything else ends the command with
    `USAGE`."""
    from audit.files.untrusted_file import read_untrusted

    try:
        return read_untrusted(file, MAX_TEXT, follow_links=True).decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        fail(f"{file} cannot be read: {_why(error)}; name a readable text file", USAGE)


def _why(error: OSError | UnicodeDecodeError) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else "it is not ASCII text"


def fail(sentence: str, status: int = REFUSED) -> NoReturn:
    """Print the error and end the command: `USAGE` for a command line that no installation accepts, else `REFUSED`."""
    typer.echo(f"error: {sentence}", err=True)
    raise typer.Exit(status)


def given_day(text: str) -> datetime:
    """The parser of options that name a day of the calendar."""
    try:
        return datetime.strptime(text, "%Y-%m-%d")
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no day of the calendar; write 2026-11-30") from None


def given_euros(text: str | Decimal) -> Decimal:
    """The parser of options that name an amount in euros."""
    try:
        euros = Decimal(text)
    except InvalidOperation:
        euros = Decimal("nan")
    if not euros.is_finite():
        raise typer.BadParameter(f"{text!r} is no amount in euros; write it as 2.50")
    return euros


def confirm(
    question: str, yes: bool, data: Path | None = None, find: "Callable[[Inventory], object] | None" = None
) -> None:
    """`find`: raises where what the question is about is not there, so that nobody is asked about a typing mistake."""
    if not yes:
        if data is not None and find is not None:
            with opened_inventory(data) as inventory:
                find(inventory)
        typer.confirm(question, abort=True, err=True)
