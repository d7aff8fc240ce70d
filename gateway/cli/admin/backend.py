"""``domicile backend create | enrol | list | revoke | token``: servers that run where no launcher reaches."""

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

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
    needs_folder,
    opened_control,
    opened_database,
    opened_inventory,
    read_text,
    remote_url,
)

if TYPE_CHECKING:
    from regions.identity.identity import BackendIdentity
    from regions.identity.trust import Trust

app = typer.Typer(name="backend")

Id = Annotated[str, typer.Argument(metavar="BACKEND", help="Its name, as 'acme-vllm-1'.")]
Region = Annotated[str, typer.Option(help="Where it runs, a region of the catalogue.")]
RefuseChangedKey = Annotated[
    bool, typer.Option("--refuse-changed-key", help="Of a managed one: send nothing to a key not seen before.")
]
Digest = Annotated[
    str | None,
    typer.Option("--weights-sha256", metavar="SHA256", help="Of the weights that our engine must run, or yours does."),
]
Price = Annotated[
    Decimal | None, typer.Option(parser=given_euros, metavar="EUR", help="What a million tokens cost there, as '0.40'.")
]

EnrolledRole = Annotated[
    Literal["mixed", "prefill", "decode"],
    typer.Option("--role", help="prefill: it computes prompts for others of its tenant; decode: it answers with them."),
]
EnrolledPort = Annotated[
    int | None, typer.Option("--transfer-port", min=1, max=65535, help="Where a prefill backend listens for those.")
]


@app.command("create")
def register(
    ctx: typer.Context,
    tenant: Tenant,
    backend: Id,
    region: Region,
    url: Annotated[str, typer.Option(help="https://host:port, and a path if it has one before /v1.")],
    model: Annotated[list[str], typer.Option(help="A model that it serves, by the name clients ask for; repeatable.")],
    ca: Annotated[Path | None, typer.Option(help="PEM file of the private CA that signed its certificate.")] = None,
    name: Annotated[str | None, typer.Option(help="The name in its certificate (default: the URL's host).")] = None,
    pin: Annotated[Path | None, typer.Option(help="PEM file of its very certificate.")] = None,
    key_file: Annotated[
        Path | None, typer.Option(help="File (mode 0600) with the key it asks for, read by the gateway.")
    ] = None,
    plain: Annotated[
        bool,
        typer.Option("--plain", help="It refuses what is not OpenAI's own: send no cache_salt."),
    ] = False,
    priority: Annotated[
        bool, typer.Option("--priority", help="It queues by vLLM's parameter `priority`, lower first.")
    ] = False,
    watermark: Annotated[
        Literal["vllm", "sglang", "tensorrt-llm"] | None,
        typer.Option(help="It watermarks its answers, and is asked to as this server is."),
    ] = None,
    single_tenant: Annotated[
        bool, typer.Option("--single-tenant", help="Declare that it serves this tenant alone.")
    ] = False,
    managed: Annotated[
        bool, typer.Option("--managed", help="It is a service of another company, trusted by public CAs and its name.")
    ] = False,
    refuse_changed_key: RefuseChangedKey = False,
    weights_sha256: Digest = None,
    eur_per_million: Price = None,
    data: Data = DEFAULT_DATA,
    as_json: AsJson = False,
) -> None:
    """Register a server of yours that speaks OpenAI's API (vLLM, SGLang, TGI, Ollama ...), or a managed service.

    It is judged by the facts of its region, and trusted by a private CA or its very certificate; a managed service
    (`--managed`) by public CAs, and it gets redacted prompts alone unless a policy says otherwise.

    Example: domicile backend create acme vllm-1 --region eu-fr-par --url https://10.0.0.7:8000 --model m --ca ca.pem
    """
    with opened_control(ctx, data) as control:
        if refuse_changed_key and not managed:
            fail("--refuse-changed-key is for managed services; add --managed, or leave it out", USAGE)
        continuity = {"public": managed, "changed_key": "refuse" if refuse_changed_key else "record"}
        trust = _trust(ca, name, pin, key_file, plain=plain, priority=priority, watermark=watermark, **continuity)
        record = control.register_backend(
            _identity(data, tenant, region, backend),
            url=url,
            models=model,
            kind="managed" if managed else "openai",
            single_tenant="declared" if single_tenant else None,
            trust=trust,
            eur_per_million=eur_per_million,
            weights_sha256=weights_sha256,
        )
    print_one(record, as_json)


def _identity(data: Path, tenant: str, region: str, backend: str) -> "BackendIdentity":
    """Raises CatalogueError for a region that is not in the catalogue; of one elsewhere, its gateway looks."""
    from gateway.installation.installation import Installation
    from regions.identity.identity import BackendIdentity

    if remote_url(data) is not None:
        return BackendIdentity("elsewhere", tenant, region, backend)  # whose cell its gateway knows
    installation = Installation.open(data)
    installation.catalogue().region(region, _today())
    return BackendIdentity(installation.cell, tenant, region, backend)


def _trust(ca: Path | None, name: str | None, pin: Path | None, key_file: Path | None, **more: Any) -> "Trust | None":
    """How gateways know a server and speak to it, from the options of `create`; None where all are left out. Ends the
    command if a file cannot be read or the options contradict each other."""
    from pydantic import ValidationError

    from policy.errors import invalid_value
    from regions.identity.trust import Trust

    try:
        trust = Trust(
            ca=None if ca is None else read_text(ca),
            name=name,
            pin=None if pin is None else _pin(pin),
            key_file=None if key_file is None else str(key_file.absolute()),
            **more,
        )
    except ValidationError as error:
        fail(invalid_value(error.errors()[0]), USAGE)
    return trust if trust != Trust() else None


@app.command("enrol")
def enrol(
    ctx: typer.Context,
    tenant: Tenant,
    backend: Id,
    region: Region,
    url: Annotated[str, typer.Option(help="Where gateways reach it: https://host:port.")],
    model: Annotated[str, typer.Option(help="The model that it serves, by the name clients ask for.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder to write, for /etc/domicile/backends/BACKEND of that host.")
    ],
    weights: Annotated[
        str | None, typer.Option(help="Its file or folder there (default: /var/lib/domicile-backend/models/MODEL).")
    ] = None,
    days: Annotated[int, typer.Option(min=1, max=90, help="How long its certificate is valid.")] = 7,
    role: EnrolledRole = "mixed",
    transfer_port: EnrolledPort = None,
    weights_sha256: Digest = None,
    eur_per_million: Price = None,
    data: Data = DEFAULT_DATA,
    as_json: AsJson = False,
) -> None:
    """Register a backend of our engine that you start yourself, and issue its certificate.

    Run it again before the certificate ends and carry the folder over: the backend takes it up as it runs.

    Example: domicile backend enrol acme a-1 --region eu-fr-par --url https://gpu-1.lan:8443 --model llama-8b -o a-1
    """
    needs_folder(data)
    from gateway.installation.enrolment import Enrolment, ServedModel
    from gateway.installation.installation import Installation
    from regions.identity.identity import BackendIdentity

    with opened_control(ctx, data) as control:
        installation = Installation.open(data)
        installation.catalogue().region(region, _today())
        identity = BackendIdentity(installation.cell, tenant, region, backend)
        if not url.startswith("https://"):
            fail(
                f"{url!r} is not an https URL, and a backend on another host speaks TLS; write https://host:port", USAGE
            )
        if (role == "prefill") != (transfer_port is not None):
            fail("--transfer-port is of --role prefill, which needs it; give both or neither", USAGE)
        weights = weights or f"/var/lib/domicile-backend/models/{model}"
        place = ServedModel(url, model, weights, role, transfer_port or 0)
        enrolment = Enrolment.prepare(installation, identity, place)
        record = control.register_backend(
            identity,
            url=url,
            models=[model],
            kind="domicile",
            eur_per_million=eur_per_million,
            weights_sha256=weights_sha256,
            role=role,
            transfer=place.transfer,
        )
        ends = enrolment.write(output, timedelta(days=days))
    print_one(record, as_json)
    typer.echo(f"{output}: carry it to the host before {ends:%Y-%m-%d %H:%M} UTC, and keep it from others", err=True)


@app.command("list")
def list_backends(tenant: Tenant, data: Data = DEFAULT_DATA, as_json: AsJson = False) -> None:
    """List a tenant's backends, ours and theirs.

    Example: domicile backend list acme
    """
    with opened_inventory(data) as inventory:
        records = inventory.backends(tenant)
    print_table(records, ("id", "kind", "region", "url", "models", "single_tenant", "cost", "revoked_at"), as_json)


@app.command("update")
def update(
    ctx: typer.Context,
    tenant: Tenant,
    backend: Id,
    accept_key: Annotated[str, typer.Option(metavar="SHA256", help="Of the public key, as the record names it.")],
    data: Data = DEFAULT_DATA,
    as_json: AsJson = False,
) -> None:
    """Accept a public key that a managed service shows now, or will.

    Example: domicile backend update acme scaleway --accept-key "$SHA256"
    """
    with opened_control(ctx, data) as control:
        record = control.accept_backend_key(tenant, backend, accept_key)
    print_one(record, as_json)


@app.command("revoke")
def revoke(
    ctx: typer.Context,
    tenant: Tenant,
    backend: Id,
    yes: Yes = False,
    data: Data = DEFAULT_DATA,
    as_json: AsJson = False,
) -> None:
    """Take a backend out of service: it gets no more requests from any gateway within a second.

    Example: domicile backend revoke acme acme-vllm-1 --yes
    """
    confirm(f"Send no more requests to {backend} of {tenant}?", yes)
    with opened_control(ctx, data) as control:
        record = control.revoke_backend(tenant, backend)
    print_one(record, as_json)


def _today() -> date:
    return datetime.now(UTC).date()


def _pin(file: Path) -> str:
    import ssl

    try:
        return sha256(ssl.PEM_cert_to_DER_cert(read_text(file).strip())).hexdigest()
    except ValueError:
        fail(f"{file} holds no certificate in PEM; give a certificate in PEM", USAGE)


@app.command("create-token")
def token(
    ctx: typer.Context,
    tenant: Tenant,
    backend: Id,
    path: Annotated[str, typer.Option(help="What is called, as '/scrub' or '/metrics'.")],
    method: Annotated[str, typer.Option(help="GET or POST.")] = "POST",
    data: Data = DEFAULT_DATA,
    as_json: AsJson = False,
) -> None:
    """Sign a request token for one call, without a body, of a backend that runs with --request-key; good for a minute.

    `domicile backend scrub` takes it by --token.

    Example: domicile backend create-token acme acme-1 --path /scrub
    """
    with opened_database(data) as (installation, _):
        signer = installation.find_request_signer()
    if signer is None:
        fail("no backend of this installation was started with a request key; start one with --request-key")
    line = signer.field(
        tenant=tenant,
        backend=backend,
        method=method.upper(),
        path=path,
        project="",
        decision="",
        digest=sha256(b"").digest(),
    )
    signed = line.partition(": ")[2].strip()
    if as_json:
        print_json({"token": signed})
    else:
        typer.echo(signed)
