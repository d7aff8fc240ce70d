"""``domicile audit find-answer`` finds recorded answers by text; ``domicile mark delete`` ends this for a month."""

from contextlib import closing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.marks.input_text import NOT_TESTED, read_text
from gateway.cli.terminal.printing import print_json
from gateway.cli.terminal.shell import (
    ACTOR,
    DEFAULT_DATA,
    AsJson,
    Data,
    Tenant,
    Yes,
    confirm,
    fail,
    needs_folder,
    opened_api,
)

if TYPE_CHECKING:
    from audit.log.found_answers import AnswerSearch
    from audit.private.audit_context import AuditContext
    from gateway.cli.remote.api import AdminApi

audit_app = typer.Typer(name="audit")
mark_app = typer.Typer(name="mark")

Period = tuple[str | None, str | None]
NOT_FOUND = 1  # as for grep(1) (POSIX), with NOT_TESTED
Reason = Annotated[str, typer.Option("--reason", help="A code, not free text: it is recorded.")]
WORDS = {
    "not_found": "No answer on record has a passage of this text; {compared} with fingerprints were compared.",
    "too_short": "The text is too short to say: {least} letters and digits are needed.",
    "unsearched": "Nothing could be compared: the salts of {unsearched} were destroyed.",
}


@audit_app.command("find-answer")
def find_answer(
    tenant: Tenant,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The text, in UTF-8.")],
    reason: Reason,
    since: Annotated[str | None, typer.Option(help="Answers from then on, UTC, as 2026-03 or 2026-03-01T12.")] = None,
    until: Annotated[str | None, typer.Option(help="Before then, UTC.")] = None,
    data: Data = DEFAULT_DATA,
    as_json: AsJson = False,
) -> None:
    """Find the recorded answers that a text comes from, with their time, model and project.

    The text is compared with fingerprints, which an answer has if its policy lists `record` under
    `transparency.marking`. The search is recorded, without the text. Exit code 0: found; 1: not found; 2: nothing could
    be compared.

    Example: domicile audit find-answer acme letter.txt --reason complaint
    """
    from audit.cli.command_context import UsageMistake, given_code, given_period
    from audit.errors import AuditError
    from audit.log.answer_prints import SHORTEST
    from gateway.database.errors import StoreError
    from gateway.installation.installation import InstallationError

    text = read_text(file)
    try:
        given_code("--reason", reason)
        period = given_period(since, until)
        api = opened_api(data)
        found = (
            _found_here(data, tenant, text, reason, period)
            if api is None
            else _asked(api, tenant, text, reason, period)
        )
    except UsageMistake as error:
        fail(str(error), NOT_TESTED)
    except (AuditError, InstallationError, StoreError, OSError) as error:
        fail(str(error), NOT_TESTED)
    if as_json:
        print_json(asdict(found))
    else:
        _tell(found, SHORTEST)
    if found.verdict != "found":
        raise typer.Exit(NOT_TESTED if found.verdict == "unsearched" else NOT_FOUND)


def _found_here(data: Path, tenant: str, text: str, reason: str, period: Period) -> "AnswerSearch":
    """Raises AuditError, InstallationError, StoreError."""
    from audit.cli.on_files import do
    from gateway.installation.installation import Installation
    from gateway.marks.answer_search import AnswerFinder
    from gateway.store.lookup import tenant as lookup_tenant_row
    from gateway.store.marks import AnswerSalts

    since, until = period
    installation = Installation.open(data)
    with closing(installation.database()) as database:
        with database.read() as session:
            lookup_tenant_row(session, tenant)
        salts = AnswerSalts(database, installation.keys)

        async def found_by(context: "AuditContext") -> "AnswerSearch":
            find = AnswerFinder(salts, context.open_reader, context.record)
            return await find(tenant, text, reason, ACTOR, since=since, until=until)

        return do(data, found_by)


def _asked(api: "AdminApi", tenant: str, text: str, reason: str, period: Period) -> "AnswerSearch":
    """Ask the remote installation. Raises StoreError."""
    from audit.log.found_answers import AnswerSearch, FoundAnswer

    since, until = period
    body = {"text": text, "reason": reason, "since": since, "until": until}
    said = api.post("tenants", tenant, "answers", "find", body=body)
    lists = {name: tuple(said[name]) for name in ("periods", "unsearched_periods")}
    answers = tuple(FoundAnswer(**each) for each in said["answers"])
    return AnswerSearch(**said | lists | {"answers": answers})


def _tell(found: "AnswerSearch", least: int) -> None:
    unsearched = ", ".join(found.unsearched_periods)
    if found.verdict != "found":
        typer.echo(WORDS[found.verdict].format(compared=found.compared, least=least, unsearched=unsearched))
    else:
        typer.echo(f"{found.matches} of {found.compared} answers with fingerprints have a passage of this text:")
        for one in found.answers:
            typer.echo(
                f"{one.ts}  {one.request_id}  project {one.project or 'unknown'}  model {one.model or 'unknown'}"
                f"  {one.common} of {one.prints} fingerprints, by chance less than {one.chance:.0e}"
            )
            typer.echo(f"  receipt {one.receipt}")
        if found.matches > len(found.answers):
            typer.echo(f"{found.matches - len(found.answers)} more have fewer in common.")
    if unsearched and found.verdict != "unsearched":
        typer.echo(f"Not searched, since their salts were destroyed: {unsearched}.")


@mark_app.command("delete")
def delete_fingerprints(
    tenant: Tenant,
    month: Annotated[str, typer.Argument(metavar="MONTH", help="Whose fingerprints, as 2026-11.")],
    reason: Reason,
    yes: Yes = False,
    data: Data = DEFAULT_DATA,
    as_json: AsJson = False,
) -> None:
    """Destroy the salt of a past month: its answers can no longer be found by their text.

    The fingerprints stay in the record and reveal nothing without the salt. Watermarks are still detected. Backups of
    the control database contain the salt until they are deleted.

    Example: domicile mark delete acme 2026-05 --reason retention
    """
    import asyncio

    from audit.cli.command_context import given_code
    from audit.cli.on_files import do
    from audit.errors import AuditError
    from audit.events.privacy import AnswerSaltDestroyed
    from gateway.database.errors import ControlError, StoreError
    from gateway.installation.installation import Installation, InstallationError
    from gateway.store.marks import AnswerSalts

    needs_folder(data)
    confirm(f"Destroy the salt of {month}? No answer of that month can be found by its text after that.", yes)
    try:
        event = AnswerSaltDestroyed(tenant=tenant, actor=ACTOR, reason=given_code("--reason", reason), period=month)
        installation = Installation.open(data)
        with closing(installation.database()) as database:
            salts = AnswerSalts(database, installation.keys)

            async def destroyed(context: "AuditContext") -> None:
                loop = asyncio.get_running_loop()

                def record() -> None:
                    asyncio.run_coroutine_threadsafe(context.record(event), loop).result()

                await asyncio.to_thread(partial(salts.destroy, tenant, month, record))

            do(data, destroyed)
    except (AuditError, ControlError, InstallationError, StoreError, OSError) as error:
        fail(str(error), NOT_FOUND)
    if as_json:
        print_json({"tenant": tenant, "period": month, "destroyed": True})
    else:
        typer.echo(f"The salt of {month} is destroyed: no answer of that month can be found by its text any more.")
