"""``domicile usage``: what was used, what it cost, and what it costs."""

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.terminal.printing import print_one, print_table, progress
from gateway.cli.terminal.shell import (
    DEFAULT_DATA,
    USAGE,
    AsJson,
    Data,
    OfTenant,
    fail,
    given_day,
    given_euros,
    opened_control,
    opened_database,
    opened_reports,
)

if TYPE_CHECKING:
    from gateway.store.reports.usage_report import Span

usage_app = typer.Typer(name="usage", help="Tokens, backend seconds and cost, from the ledger.", no_args_is_help=True)

Since = Annotated[datetime | None, typer.Option(parser=given_day, metavar="DAY", help="From this day (UTC) on.")]
Until = Annotated[datetime | None, typer.Option(parser=given_day, metavar="DAY", help="Up to this day, included.")]


@usage_app.command("show")
def show_usage(
    tenant: OfTenant = None,
    by: Annotated[
        str, typer.Option(help="What to sum up by: tenant, project, key, model, region, backend, day; commas between.")
    ] = "tenant,model",
    since: Since = None,
    until: Until = None,
    data: Data = DEFAULT_DATA,
    as_json: AsJson = False,
) -> None:
    """Show requests, tokens, backend seconds, cost, cost per million tokens, and energy where backends measure it.

    Example: domicile usage show --by tenant,model --since 2026-11-01
    """
    from gateway.store.reports.usage_report import dimensions

    with opened_reports(data) as reports:
        groups = dimensions(by)
        lines = reports.usage(tenant, groups, _span(since, until))
    columns = (
        *dict.fromkeys(groups),
        *("requests", "aborted", "refused", "tokens_in", "tokens_cached", "tokens_out", "backend_seconds"),
        *("eur", "eur_per_million_tokens", "unpriced", "energy_kwh", "joules_per_1000_tokens"),
    )
    print_table(lines, columns, as_json)


@usage_app.command("cost")
def show_cost(
    tenant: OfTenant = None,
    by: Annotated[
        str,
        typer.Option(help="What to sum up by: tenant, deployment, model, region, gpu, replica, day; commas between."),
    ] = "tenant,deployment",
    since: Since = None,
    until: Until = None,
    what_if: Annotated[
        list[str] | None,
        typer.Option("--what-if", help="CARD=EUR an hour: what the deployments would cost on it; repeatable."),
    ] = None,
    data: Data = DEFAULT_DATA,
    as_json: AsJson = False,
) -> None:
    """Show what the time of deployments costs, how much of it was idle, and the cost per million tokens.

    With --what-if, the planner's figures for deployments that live: of a replica at full use on another card, and what
    calls of the same model did take on such a card, where that was measured.

    Example: domicile usage cost --by tenant,deployment --since 2026-11-01
    """
    from gateway.cli.admin.cost_what_if import Card, on_cards
    from gateway.store.reports.cost_report import cost_dimensions

    if what_if:
        with opened_database(data) as (installation, database):
            try:
                cards = [Card.parse(said) for said in what_if]
            except ValueError as error:
                fail(str(error), USAGE)
            plans = on_cards(database, installation, tenant, cards)
            shown = (
                "tenant",
                "deployment",
                "card",
                "eur_per_hour",
                "tokens_per_second",
                "eur_per_million_tokens",
                "joules_per_1000_tokens",
                "refusal",
            )
            print_table(plans, shown, as_json)
            return
    with opened_reports(data) as reports:
        groups = cost_dimensions(by)
        lines = reports.cost(tenant, groups, _span(since, until))
    columns = (
        *dict.fromkeys(groups),
        *("up_seconds", "busy_seconds", "idle_share", "eur", "requests", "tokens_in", "tokens_out"),
        *("tokens_per_second", "eur_per_million_tokens", "token_eur", "energy_kwh", "joules_per_1000_tokens"),
    )
    print_table(lines, columns, as_json)


@usage_app.command("export")
def export_usage(
    tenant: OfTenant = None,
    since: Since = None,
    until: Until = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Where to (default: standard output).")] = None,
    data: Data = DEFAULT_DATA,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line, instead of CSV.")] = False,
) -> None:
    """Write the ledger out, a line a call: CSV, or JSON.

    Example: domicile usage export --since 2026-11-01 --until 2026-11-30 -o november.csv
    """
    from audit.files.new_file import new_file

    with opened_reports(data) as reports:
        span = _span(since, until)
        lines = reports.ledger(tenant, span, as_json=as_json)
        if output is None:
            for line in lines:
                typer.echo(line, nl=False)
            return
        with (
            new_file(output) as out,
            progress("calls", reports.ledger_size(tenant, span), hidden=as_json) as advance,
        ):
            for line in lines:
                out.write(line.encode())
                advance(1)


@usage_app.command("list-prices")
def list_prices(data: Data = DEFAULT_DATA, as_json: AsJson = False) -> None:
    """List every version of every model's price, in euros a million tokens.

    Example: domicile usage list-prices
    """
    with opened_reports(data) as reports:
        records = reports.prices()
    print_table(records, ("model", "number", "valid_from", "input", "output", "cached", "batch_discount"), as_json)


@usage_app.command("create-price")
def set_price(
    ctx: typer.Context,
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Name of the model, as calls name it.")],
    input_: Annotated[
        Decimal, typer.Option("--input", parser=given_euros, metavar="EUR", help="Euros a million prompt tokens.")
    ],
    output: Annotated[Decimal, typer.Option(parser=given_euros, metavar="EUR", help="Euros a million answer tokens.")],
    cached: Annotated[
        Decimal | None,
        typer.Option(parser=given_euros, metavar="EUR", help="The same for those found in a cache (default: --input)."),
    ] = None,
    batch_discount: Annotated[int, typer.Option(min=0, max=100, help="Percent off for lines of batches.")] = 0,
    valid_from: Annotated[
        datetime | None, typer.Option(formats=["%Y-%m-%dT%H:%M:%S%z", "%Y-%m-%d"], help="From then on (default: now).")
    ] = None,
    data: Data = DEFAULT_DATA,
    as_json: AsJson = False,
) -> None:
    """Give a model its next price. What was used before costs what it cost.

    Example: domicile usage create-price smollm2-135m --input 0.02 --output 0.05 --valid-from 2027-01-01
    """
    if valid_from is not None and valid_from.tzinfo is None:
        valid_from = valid_from.replace(tzinfo=UTC)
    with opened_control(ctx, data) as control:
        record = control.set_price(
            model, input=input_, output=output, cached=cached, batch_discount=batch_discount, valid_from=valid_from
        )
    print_one(record, as_json)


def _span(since: datetime | None, until: datetime | None) -> "Span":
    from gateway.store.reports.usage_report import Span

    def day(moment: datetime | None) -> date | None:
        return None if moment is None else moment.date()

    return Span(since=day(since), until=day(until))
