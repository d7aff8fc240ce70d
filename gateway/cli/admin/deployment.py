"""``domicile deployment``: what shall run of a tenant's models, and what does."""

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli.terminal.flags import flag_of
from gateway.cli.terminal.printing import print_json, print_one, print_table
from gateway.cli.terminal.shell import (
    DEFAULT_DATA,
    USAGE,
    AsJson,
    Data,
    Tenant,
    Yes,
    confirm,
    fail,
    given_euros,
    opened_control,
    opened_reports,
    print_next_step,
    remote_url,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydantic import BaseModel

    from gateway.records.control import Record
    from gateway.store.control.control import Control
    from regions.fleet.cards import Cards
    from regions.fleet.deployment import Deployment

deployment_app = typer.Typer(
    name="deployment", help="Backends that come, scale, sleep and go by themselves.", no_args_is_help=True
)

Pinned = Annotated[
    str | None,
    typer.Option("--weights-sha256", metavar="SHA256", help="Digest its replicas must have (default: the first's)."),
]
Gpu = Annotated[str, typer.Option(help="A card's name, cpu, or auto: the smallest that the planner finds enough.")]
Gpus = Annotated[int | None, typer.Option(min=1, max=8, help="Cards of one replica; default: 1, of auto as few as do.")]
DeploymentKind = Annotated[
    str, typer.Option("--kind", help="mixed; disaggregated: prompts are computed by replicas of their own.")
]
Prefill = Annotated[
    int | None, typer.Option(min=1, help="With --kind disaggregated: replicas for prompts; default: 1.")
]
Decode = Annotated[int | None, typer.Option(min=1, help="With it: as many that answer, in place of --min and --max.")]
WEIGHTS_HELP = "GGUF file or folder, in the folder of models or by its full path; or hf://, oci:// or s3:// to fetch."
Name = Annotated[str, typer.Argument(metavar="DEPLOYMENT", help="Its name, as 'small'.")]
Least = Annotated[int | None, typer.Option("--min", help="Replicas at least; 0 lets it sleep.")]
Most = Annotated[int | None, typer.Option("--max", help="Replicas at most.")]
Idle = Annotated[int | None, typer.Option("--idle-s", help="Seconds without a call after which it shrinks to --min.")]
Ttft = Annotated[
    int | None, typer.Option("--ttft-ms", help="Time to the first token to stay under, in 95 of 100 calls.")
]
Asleep = Annotated[
    int | None, typer.Option("--asleep-s", help="Seconds that replicas that are not needed sleep before they end.")
]
Each = Annotated[int | None, typer.Option("--calls-each", help="Calls that a replica should have at one time.")]


def _price_of_an_hour(text: str | Decimal) -> Decimal:
    euros = given_euros(text)
    if not 0 <= euros <= 10**6:
        raise typer.BadParameter(f"{text!r} is no price of an hour; write an amount of 0 to 1000000 euros")
    return euros


EuroPerHour = Annotated[
    Decimal, typer.Option(parser=_price_of_an_hour, metavar="EUR", help="Euros an hour of one replica.")
]


@deployment_app.command("create")
def create(
    ctx: typer.Context,
    tenant: Tenant,
    deployment: Name,
    model: Annotated[str, typer.Option(help="The name that calls ask for.")],
    weights: Annotated[str, typer.Option(help=WEIGHTS_HELP)],
    region: Annotated[list[str], typer.Option(help="Where it may run, the preferred first; repeatable.")],
    gpu: Gpu = "cpu",
    gpus: Gpus = None,
    least: Least = None,
    most: Most = None,
    idle_s: Idle = None,
    ttft_ms: Ttft = None,
    calls_each: Each = None,
    asleep_s: Asleep = None,
    wait_s: Annotated[int, typer.Option("--wait-s", help="Seconds that a call may wait for a replica.")] = 120,
    eur_per_hour: EuroPerHour = Decimal(0),
    weights_sha256: Pinned = None,
    kind: DeploymentKind = "mixed",
    prefill: Prefill = None,
    decode: Decode = None,
    data: Data = DEFAULT_DATA,
    as_json: AsJson = False,
) -> None:
    """Create a deployment: a model, its regions and replicas. The leading gateway starts it on demand.

    Example: domicile deployment create acme small --model small --weights small.gguf --region eu-fr-par --max 2
    """
    from gateway.records.prices import MICRO
    from regions.launchers.fetching import is_elsewhere

    if is_elsewhere(weights) and remote_url(data) is not None:
        fail("the admin API fetches no models; run this on the gateway's machine, or name what is there", USAGE)
    wanted = _valid(
        "Deployment",
        {
            "tenant": tenant,
            "id": deployment,
            "model": model,
            "weights": weights,
            "regions": tuple(region),
            "wait_s": wait_s,
            "micro_eur_per_hour": int(eur_per_hour * MICRO),
            "weights_sha256": weights_sha256,
            "kind": kind,
            "prefill": prefill or int(kind == "disaggregated"),
            **_figures(*_bounds(kind, decode, least, most), idle_s, ttft_ms, calls_each, asleep_s),
        },
    )
    with opened_control(ctx, data) as control:
        if remote_url(data) is not None:  # the gateway checks it
            if gpu == "auto":
                fail("the admin API does not choose a card; name one by --gpu, or cpu", USAGE)
            wanted = _on_cards(wanted, _cards(gpu, gpus))
        else:
            wanted = _feasible(data, wanted, gpu, gpus)
        record = control.create_deployment(wanted)
    print_one(record, as_json)
    print_next_step(data, tenant, as_json)


def _feasible(data: Path, wanted: "Deployment", gpu: str, gpus: int | None) -> "Deployment":
    """Return `wanted` with its cards, if it can run here. Weights that are elsewhere are fetched and pinned. Raises the
    errors of `fetched` and `Feasibility.check_everywhere`."""
    from gateway.installation.feasibility import Feasibility
    from gateway.installation.installation import Installation, configured
    from regions.launchers.fetching import fetched, is_elsewhere
    from regions.launchers.planning import card_for

    installation = Installation.open(data)
    for each in wanted.regions:
        installation.catalogue().region(each, datetime.now(UTC).date())
    if is_elsewhere(wanted.weights):
        path, sha256 = fetched(wanted.weights, installation.models(), wanted.weights_sha256)
        wanted = wanted.model_copy(update={"weights": path, "weights_sha256": sha256})
    if gpu == "auto":
        cards = card_for(installation.models() / wanted.weights, calls=wanted.calls_each, count=gpus)
    else:
        cards = _cards(gpu, gpus)
    wanted = _on_cards(wanted, cards)
    Feasibility(installation, configured()).check_everywhere(wanted)
    return wanted


@deployment_app.command("list")
def list_deployments(tenant: Tenant, data: Data = DEFAULT_DATA, as_json: AsJson = False) -> None:
    """List a tenant's deployments.

    Example: domicile deployment list acme
    """
    with opened_reports(data) as reports:
        records = reports.deployments(tenant)
    columns = (
        "id",
        "model",
        "regions",
        "gpu",
        "min_replicas",
        "max_replicas",
        "eur_per_hour",
        "draining",
        "deleted_at",
    )
    print_table(records, columns, as_json)


@deployment_app.command("show")
def show(tenant: Tenant, deployment: Name, data: Data = DEFAULT_DATA, as_json: AsJson = False) -> None:
    """Show a deployment and the replicas that it has now.

    Example: domicile deployment show acme small
    """
    with opened_reports(data) as reports:
        record = reports.deployment(tenant, deployment)
        replicas = reports.replicas(tenant, deployment)
    if as_json:
        shown = [replica.model_dump(mode="json") for replica in replicas]
        print_json({**record.model_dump(mode="json"), "replicas": shown})
        return
    print_one(record, False)
    typer.echo()
    print_table(replicas, ("id", "role", "region", "state", "gpu", "holder", "created_at"), False)


@deployment_app.command("update")
def update(
    ctx: typer.Context,
    tenant: Tenant,
    deployment: Name,
    weights_sha256: Annotated[str, typer.Option(metavar="SHA256", help="Digest that new replicas must have.")],
    data: Data = DEFAULT_DATA,
    as_json: AsJson = False,
) -> None:
    """Pin a deployment to other weights: replicas that start from now on have to run them.

    Example: domicile deployment update acme small --weights-sha256 "$SHA256"
    """
    with opened_control(ctx, data) as control:
        record = control.pin_weights(tenant, deployment, weights_sha256)
    print_one(record, as_json)


@deployment_app.command("scale")
def scale(
    ctx: typer.Context,
    tenant: Tenant,
    deployment: Name,
    least: Least = None,
    most: Most = None,
    idle_s: Idle = None,
    ttft_ms: Ttft = None,
    calls_each: Each = None,
    asleep_s: Asleep = None,
    data: Data = DEFAULT_DATA,
    as_json: AsJson = False,
) -> None:
    """Change its figures; those that are not named stay. One that was drained works again.

    Example: domicile deployment scale acme small --min 1 --max 4
    """
    with opened_control(ctx, data) as control, opened_reports(data) as reports:
        from gateway.installation.feasibility import Feasibility
        from gateway.installation.installation import Installation, configured
        from regions.fleet.deployment import Scale

        present = reports.deployment(tenant, deployment)
        known = present.model_dump(include=set(Scale.model_fields))
        figures = _valid("Scale", known | _figures(least, most, idle_s, ttft_ms, calls_each, asleep_s))
        if remote_url(data) is None:  # else the gateway checks it
            Feasibility(Installation.open(data), configured()).check_scale(present, figures)
        record = control.scale_deployment(tenant, deployment, figures)
    print_one(record, as_json)


def _act(name: str, change: "Callable[[Control, str, str], Record]", says: str) -> None:
    """Adds the command `name`, which changes a deployment and needs no more than its name. `says`: its help."""

    def command(
        ctx: typer.Context, tenant: Tenant, deployment: Name, data: Data = DEFAULT_DATA, as_json: AsJson = False
    ) -> None:
        with opened_control(ctx, data) as control:
            record = change(control, tenant, deployment)
        print_one(record, as_json)

    deployment_app.command(name, help=f"{says}\n\nExample: domicile deployment {name} acme small")(command)


_act(
    "drain",
    lambda control, tenant, deployment: control.drain_deployment(tenant, deployment),
    "Let its running answers end and its replicas stop; none is started until it is scaled again.",
)
_act(
    "sleep",
    lambda control, tenant, deployment: control.put_deployment_to_sleep(tenant, deployment),
    "Let its running answers end and its replicas sleep, --min or not, until a call waits or it is woken.",
)
_act(
    "wake",
    lambda control, tenant, deployment: control.wake_deployment(tenant, deployment),
    "Wake a replica, or start one where none sleeps, before a call needs it.",
)


@deployment_app.command("delete")
def delete(
    ctx: typer.Context,
    tenant: Tenant,
    deployment: Name,
    yes: Yes = False,
    data: Data = DEFAULT_DATA,
    as_json: AsJson = False,
) -> None:
    """Drain and delete a deployment permanently; its costs stay on record.

    Example: domicile deployment delete acme small --yes
    """
    confirm(f"Delete deployment {deployment} of {tenant} permanently?", yes)
    with opened_control(ctx, data) as control:
        record = control.delete_deployment(tenant, deployment)
    print_one(record, as_json)


def _figures(
    least: int | None,
    most: int | None,
    idle_s: int | None,
    ttft_ms: int | None,
    calls_each: int | None,
    asleep_s: int | None,
) -> dict[str, int]:
    named = {
        "min_replicas": least,
        "max_replicas": most,
        "idle_s": idle_s,
        "ttft_ms": ttft_ms,
        "calls_each": calls_each,
        "asleep_s": asleep_s,
    }
    return {name: value for name, value in named.items() if value is not None}


def _valid(kind: str, values: dict[str, Any]) -> Any:
    """A `Deployment` or `Scale`; an error names the option."""
    from pydantic import ValidationError

    from policy.errors import invalid_value
    from regions.fleet import deployment

    model: type[BaseModel] = getattr(deployment, kind)
    try:
        return model.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = f"{flag_of(str(first['loc'][0]))}: " if first["loc"] else ""
        fail(f"{place}{invalid_value(first)}", USAGE)


def _bounds(kind: str, decode: int | None, least: int | None, most: int | None) -> tuple[int | None, int | None]:
    """Replicas that answer, at least and at most."""
    if decode is None:
        return least, most
    if kind != "disaggregated" or least is not None or most is not None:
        fail("--decode is of --kind disaggregated, in place of --min and --max; leave it or these out", USAGE)
    return decode, decode


def _on_cards(wanted: "Deployment", cards: "Cards") -> "Deployment":
    from regions.fleet.deployment import check_kind

    try:
        check_kind(wanted.kind, wanted.prefill)
    except ValueError as error:
        fail(str(error), USAGE)
    return wanted.model_copy(update={"gpu": str(cards)})


def _cards(gpu: str, gpus: int | None) -> "Cards":
    from regions.fleet.cards import Cards

    try:
        cards = Cards.parse(gpu)
        return cards if gpus is None else Cards.parse(f"{gpus}x{cards.name}")
    except ValueError as error:
        fail(str(error), USAGE)
