"""``domicile policy``: a draft's way into force, and what it would change, from a shell on the installation's folder.

Who submits, approves and activates shows an access token (``DOMICILE_TOKEN``), so that the record can say that two
people did it. Without one, ``activate TENANT FILE`` puts a document in force at once: a user with a shell on the folder
has its keys too; the record then says that no person approved it.
"""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from gateway.cli.terminal.printing import print_json, print_next, print_one, print_table
from gateway.cli.terminal.shell import (
    DEFAULT_DATA,
    USAGE,
    AsJson,
    Data,
    InProject,
    OwnTenant,
    Tenant,
    fail,
    given_day,
    opened_api,
    opened_control,
    opened_inventory,
    owner_of,
    plain_errors,
    policy_from,
    print_next_step,
    remote_url,
)

if TYPE_CHECKING:
    from gateway.cli.terminal.study import Study
    from gateway.identity.roles import Actor, Permission
    from gateway.store.control.control import Control

app = typer.Typer(name="policy", help="Activate policies and see what is in force.", no_args_is_help=True)

OfProject = Annotated[str | None, typer.Option("--project", help="The document of this project.")]
File = Annotated[Path, typer.Argument(metavar="FILE", help="The policy document, YAML.")]
Number = Annotated[int, typer.Argument(metavar="NUMBER", min=1, help="Of the proposal, as 'submit' gave it.")]
Token = Annotated[
    str | None, typer.Option("--token", envvar="DOMICILE_TOKEN", show_envvar=True, help="Your access token.")
]


@app.command("list")
def list_policies(tenant: Tenant, data: Data = DEFAULT_DATA, as_json: AsJson = False) -> None:
    """List every version ever in force for a tenant and its projects.

    Example: domicile policy list acme
    """
    with opened_inventory(data) as inventory:
        records = inventory.policies(tenant)
    columns = ("project", "number", "active", "created_at", "activated_by", "sha256")
    print_table(records, columns, as_json)


@app.command("show")
def show_policy(
    tenant: Tenant,
    project: InProject = None,
    number: Annotated[int | None, typer.Option(min=1, help="This version (default: the one in force).")] = None,
    data: Data = DEFAULT_DATA,
    as_json: AsJson = False,
) -> None:
    """Print a policy document as it was activated.

    Example: domicile policy show acme --number 2
    """
    with opened_inventory(data) as inventory:
        versions = [record for record in inventory.policies(tenant) if record.project == project]
    for record in versions:
        if record.number == number if number else record.active:
            if as_json:
                print_json(record.model_dump(mode="json"))
            else:
                typer.echo(record.document, nl=not record.document.endswith("\n"))
            return
    wanted = f"version {number}" if number else "policy in force"
    scope = f"{tenant}/{project}" if project else tenant
    fail(f"there is no {wanted} for {scope}; `domicile policy history {tenant}` lists the versions")


@app.command("new")
def new_policy(
    tenant: Tenant,
    preset: Annotated[str, typer.Option(help="eu-strict, gdpr-standard, health or finance.")] = "eu-strict",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A file that is not there yet (default: standard output).")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a policy document to start from, with a comment on each key.

    Example: domicile policy new acme --preset eu-strict --output acme.yaml
    """
    from regions.identity.identity import check_name

    with plain_errors():
        check_name(tenant, "tenant")
        document = policy_from(preset, tenant)
        if output is not None:
            from audit.files.new_file import PUBLIC, new_file

            with new_file(output, PUBLIC) as file:
                file.write(document.encode())
    if as_json:
        print_json({"preset": preset, "document": document, "file": None if output is None else str(output)})
    elif output is None:
        typer.echo(document, nl=False)
    else:
        file_name = shlex.quote(str(output))
        print_next(f"domicile policy check {file_name} && domicile policy activate {tenant} {file_name}", as_json)


@app.command("submit")
def submit(
    ctx: typer.Context,
    tenant: OwnTenant,
    file: File,
    project: OfProject = None,
    token: Token = None,
    data: Data = DEFAULT_DATA,
    as_json: AsJson = False,
) -> None:
    """Propose a document: it must be sound and pass its own tests. A second person approves it.

    Example: domicile policy submit acme acme.yaml
    """
    document = _read(file)
    with _acting(ctx, data, tenant, "policies.submit", token) as (control, actor):
        record = control.submit_policy(owner_of(tenant), document, project=project, person=actor.person)
    if as_json:
        print_one(record, as_json)
    else:
        typer.echo(f"proposal {record.number} of {tenant} waits for a second person (sha256 {record.sha256})")


@app.command("approve")
def approve(
    ctx: typer.Context,
    tenant: OwnTenant,
    number: Number,
    project: OfProject = None,
    token: Token = None,
    data: Data = DEFAULT_DATA,
    as_json: AsJson = False,
) -> None:
    """Approve another person's proposal.

    Example: domicile policy approve acme 4
    """
    with _acting(ctx, data, tenant, "policies.approve", token) as (control, actor):
        record = control.approve_policy(owner_of(tenant), number, person=actor.person, project=project)
    if as_json:
        print_one(record, as_json)
    else:
        typer.echo(f"proposal {number} of {tenant} is approved; domicile policy activate {tenant} --proposal {number}")


@app.command("withdraw")
def withdraw(
    ctx: typer.Context,
    tenant: OwnTenant,
    number: Number,
    reason: Annotated[str, typer.Option("--reason", help="Why, for the record of proposals.")] = "withdrawn",
    project: OfProject = None,
    token: Token = None,
    data: Data = DEFAULT_DATA,
    as_json: AsJson = False,
) -> None:
    """Take back a proposal that is not in force, also one that is scheduled.

    Example: domicile policy withdraw acme 4 --reason 'the wrong file'
    """
    with _acting(ctx, data, tenant, "policies.submit", token) as (control, _):
        record = control.withdraw_policy(owner_of(tenant), number, project=project, because=reason)
    print_one(record, as_json)


@app.command("activate")
def activate(
    ctx: typer.Context,
    tenant: OwnTenant,
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help="A document, without a second person.")] = None,
    proposal: Annotated[int | None, typer.Option(min=1, help="The approved proposal of this number.")] = None,
    at: Annotated[
        datetime | None,
        typer.Option(formats=["%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M"], help="From this instant on, UTC (default: now)."),
    ] = None,
    project: OfProject = None,
    token: Token = None,
    data: Data = DEFAULT_DATA,
    as_json: AsJson = False,
) -> None:
    """Put a policy in force. It must be sound and pass its own tests; otherwise the one before stays.

    Example: domicile policy activate acme --proposal 4 --at 2026-12-01T06:00

    Example: domicile policy activate acme acme.yaml
    """
    if (file is None) == (proposal is None):
        fail("FILE and --proposal are both given, or neither; name one of them", USAGE)
    if file is not None:
        if at is not None:
            fail("--at is for an approved proposal; submit the document first (domicile policy submit)", USAGE)
        document = _read(file)
        with opened_control(ctx, data) as control:
            version = control.activate_policy(owner_of(tenant), document, project=project)
        if as_json:
            print_one(version, as_json)
        else:
            scope = f"{tenant}/{project}" if project else tenant
            typer.echo(f"version {version.number} is in force for {scope} (sha256 {version.sha256})")
        if owner_of(tenant) is not None:
            print_next_step(data, tenant, as_json)
        return
    assert proposal is not None  # noqa: S101
    instant = None if at is None else at.replace(tzinfo=UTC)
    with _acting(ctx, data, tenant, "policies.activate", token) as (control, _):
        record = control.activate_proposal(owner_of(tenant), proposal, project=project, at=instant)
    if as_json:
        print_one(record, as_json)
    elif record.version is None:
        typer.echo(f"proposal {proposal} of {tenant} takes effect on {record.activates_at:%Y-%m-%d %H:%M:%S} UTC")
    else:
        typer.echo(f"version {record.version} is in force for {tenant} (sha256 {record.sha256})")


@app.command("rollback")
def roll_back(
    ctx: typer.Context,
    tenant: OwnTenant,
    project: OfProject = None,
    token: Token = None,
    data: Data = DEFAULT_DATA,
    as_json: AsJson = False,
) -> None:
    """Put the version before the one in force back, as a new version. One person may; it goes one step.

    Example: domicile policy rollback acme
    """
    with _acting(ctx, data, tenant, "policies.activate", token) as (control, _):
        record = control.roll_back_policy(owner_of(tenant), project=project)
    if as_json:
        print_one(record, as_json)
    else:
        typer.echo(f"version {record.number} is in force for {tenant} (sha256 {record.sha256})")


@app.command("history")
def history(tenant: OwnTenant, data: Data = DEFAULT_DATA, as_json: AsJson = False) -> None:
    """Every version ever in force and every proposal, with who made, approved and activated it.

    Example: domicile policy history acme
    """
    with opened_inventory(data) as inventory:
        versions, proposals = inventory.policies(owner_of(tenant)), inventory.proposals(owner_of(tenant))
    if as_json:
        waiting = [{**one.model_dump(mode="json"), "state": one.state} for one in proposals]
        print_json({"versions": [one.model_dump(mode="json") for one in versions], "proposals": waiting})
        return
    print_table(versions, ("project", "number", "active", "created_at", "activated_by", "sha256"), as_json)
    for one in proposals:
        approved = f", approved by {one.approved_by}" if one.approved_by else ""
        because = f" ({one.withdrawn_because})" if one.withdrawn_because else ""
        scope = f"{tenant}/{one.project}" if one.project else tenant
        typer.echo(f"proposal {one.number} of {scope}: {one.state}{because}, submitted by {one.submitted_by}{approved}")


@app.command("diff")
def diff(
    tenant: OwnTenant, file: File, project: OfProject = None, data: Data = DEFAULT_DATA, as_json: AsJson = False
) -> None:
    """Compare a document with what is in force, rule by rule, all levels together.

    Example: domicile policy diff acme acme.yaml
    """
    document = _read(file)
    with _opened_study(data) as study:
        found = study.differences(owner_of(tenant), project, document)
    if as_json:
        print_json([{"rule": one.rule, "before": one.before, "after": one.after, "note": one.note} for one in found])
    else:
        for one in found:
            typer.echo(str(one))
        if not found:
            typer.echo("no rule changes")


@app.command("explain")
def explain(
    tenant: Annotated[str, typer.Argument(metavar="TENANT", help="Name of the tenant.")],
    project: Annotated[str, typer.Argument(metavar="PROJECT", help="Name of the project.")],
    model: Annotated[str, typer.Option(help="The model that a request would ask for.")],
    file: Annotated[Path | None, typer.Option("--file", help="Judge by this document of the tenant instead.")] = None,
    data: Data = DEFAULT_DATA,
    as_json: AsJson = False,
) -> None:
    """Decide about a request of a project as a gateway would now, and show the lines that say so. Exits with 1 on no.

    Example: domicile policy explain acme support --model mistral-small
    """
    document = None if file is None else _read(file)
    with _opened_study(data) as study:
        decision, lines = study.explanation(tenant, project, model, document)
    if as_json:
        print_json(decision)
    else:
        for line in lines:
            typer.echo(line)
    if not decision["allowed"]:
        raise typer.Exit(1)


@app.command("simulate")
def run_simulation(
    tenant: OwnTenant,
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help="The policy document, YAML.")] = None,
    dpf_accepted: Annotated[
        bool | None,
        typer.Option("--dpf-accepted/--no-dpf-accepted", help="Instead of FILE: what is in force, without the DPF."),
    ] = None,
    since: Annotated[
        datetime | None,
        typer.Option(parser=given_day, metavar="DAY", help="Calls from this day on (default: all on record)."),
    ] = None,
    project: OfProject = None,
    data: Data = DEFAULT_DATA,
    as_json: AsJson = False,
) -> None:
    """Replay recorded calls against a draft: what would be refused, admitted or moved, by count and reason.

    Example: domicile policy simulate acme acme.yaml --since 2026-11-01

    Example: domicile policy simulate operator --no-dpf-accepted
    """
    if (file is None) == (dpf_accepted is None) or dpf_accepted:
        fail("FILE and --no-dpf-accepted are both given, or neither; name one of them", USAGE)
    document, begin = None if file is None else _read(file), None if since is None else since.replace(tzinfo=UTC)
    with _opened_study(data) as study:
        impacts = study.simulated(owner_of(tenant), project, document, begin)
    if as_json:
        print_json([{"tenant": name, **impact.as_json()} for name, impact in impacts])
        return
    for name, impact in impacts:
        typer.echo(f"{name}: {impact.calls} recorded calls, {impact.same} stay as they are")
        for group in impact.groups:
            typer.echo(f"  {group}")


@contextmanager
def _acting(
    ctx: typer.Context, data: Path, tenant: str, permission: "Permission", token: str | None
) -> "Iterator[tuple[Control, Actor]]":
    """As the person whose `token` it is, if their roles allow it."""
    from gateway.identity.keys import KeyRefused, parse_key
    from gateway.identity.roles import OF_OPERATOR, Actor, check
    from gateway.installation.installation import Installation
    from gateway.store.bearers import find_bearer

    if remote_url(data) is not None:
        with opened_control(ctx, data) as control:
            from gateway.cli.remote.control import RemoteControl

            yield control, cast(RemoteControl, control).actor()
        return
    if token is None:
        fail("no access token is given; set DOMICILE_TOKEN to yours (domicile person create-token)")
    with plain_errors():
        installation = Installation.open(data)
        database = installation.database()
        try:
            bearer = find_bearer(
                database, installation.cell, installation.hasher(), parse_key(token, "admin"), datetime.now(UTC)
            )
            if bearer.person is None:
                fail("this is a bootstrap token, which belongs to no person; use a person's access token")
            actor = Actor(bearer.person.id, bearer.person.tenant, bearer.person.roles, bearer.token)
            if owner_of(tenant) is None:
                verdict = check(actor, OF_OPERATOR[permission], None)
            else:
                verdict = check(actor, permission, tenant)
            if not verdict.allowed:
                fail(verdict.because)
            record = ctx.obj or (lambda installation: nullcontext(lambda event: None))
            with record(installation) as on_event:
                yield installation.control(database, actor=actor.name, on_event=on_event), actor
        except KeyRefused as error:
            fail(str(error))
        finally:
            database.close()


@contextmanager
def _opened_study(data: Path) -> "Iterator[Study]":
    """Studies of policies: on the data folder, or by the admin API of a remote installation."""
    if (api := opened_api(data)) is not None:
        from gateway.cli.remote.study import RemoteStudy

        with plain_errors():
            yield RemoteStudy(api)  # type: ignore[misc]  # the same methods
        return
    from gateway.cli.terminal.study import Study
    from gateway.installation.installation import Installation
    from policy.errors import PolicyError

    with plain_errors():
        installation = Installation.open(data)
        database = installation.database()
        try:
            yield Study(installation.policy_study(database))
        except PolicyError as error:
            fail(str(error))
        finally:
            database.close()


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        fail(
            f"the file {file} cannot be read: "
            f"{error.strerror if isinstance(error, OSError) else 'it is not UTF-8 text'}; name a readable "
            "policy document"
        )
