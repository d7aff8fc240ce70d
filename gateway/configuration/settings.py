"""One YAML file and ``DOMICILE__SECTION__KEY`` variables, validated once into a frozen object.

The file never holds secrets: only paths to files that hold them.
"""

import socket
from difflib import get_close_matches
from ipaddress import IPv4Network, IPv6Network, ip_address
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from audit.errors import StoreError
from audit.events.event_types import OCSF_CLASSES
from audit.storage.dsn import database_of
from gateway.records.control import Network, Role
from policy.document.countries import builtin_countries
from policy.errors import invalid_value
from policy.facts import Technology
from regions.identity.identity import NAME

MIB = 1 << 20
_OF_CALLS = ("inference.", "routing.", "request.", "response.", "file.")
BUDGET_EVENTS = ("budget.nearly_used", "budget.used_up")
WEBHOOK_EVENTS = (
    *BUDGET_EVENTS,
    *(kind for kind in OCSF_CLASSES if not kind.startswith(_OF_CALLS)),
)
"""What webhooks may be of: the record's types but those of single calls, and budgets."""
LOOPBACK = (IPv4Network("127.0.0.0/8"), IPv6Network("::1/128"))


class SettingsError(ValueError):
    """The configuration cannot be used; the message names the file, the key and what would be accepted."""


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Listen(Section):
    """Where clients connect. Off this host only with TLS, or behind a proxy that ends TLS on this host or pod."""

    host: str = "127.0.0.1"
    port: int = Field(8400, ge=0, le=65535)
    cert_file: Path | None = None
    key_file: Path | None = None
    tls_ended_by_proxy: bool = False
    trusted_proxies: tuple[Network, ...] | None = Field(
        None, description="networks whose proxies are believed who calls"
    )
    proxy_header: Literal["x-forwarded-for", "forwarded"] = "x-forwarded-for"
    proxy_protocol_from: tuple[Network, ...] | None = Field(
        None, description="networks whose connections begin with a header of the PROXY protocol"
    )
    operations_from: tuple[Network, ...] | None = None
    workers: int = Field(1, ge=1, le=256, description="processes that take calls on this machine")
    lame_duck_s: float = Field(
        0, ge=0, le=300, description="after SIGTERM, how long calls are still taken while /readyz answers 503"
    )

    @property
    def operators(self) -> tuple[IPv4Network | IPv6Network, ...]:
        """Who may read ``/metrics`` and the details of ``/readyz``: they name tenants and backends.

        This host by default; none behind a proxy that terminates TLS, since all calls come from its address.
        """
        if self.operations_from is not None:
            return self.operations_from
        return () if self.tls_ended_by_proxy else LOOPBACK

    @model_validator(mode="after")
    def tls_off_host(self) -> Self:
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("cert_file or key_file is missing; set both or neither")
        if not is_loopback(self.host) and self.cert_file is None and not self.tls_ended_by_proxy:
            raise ValueError(
                f"the address {self.host} is reachable from other machines; set cert_file and key_file, or "
                "tls_ended_by_proxy: true if a proxy in front ends TLS"
            )
        return self


class Requests(Section):
    """Bounds of one request, in bytes and seconds."""

    max_body_bytes: int = Field(8 * MIB, ge=1024)
    body_timeout_s: float = Field(30, gt=0)
    connect_timeout_s: float = Field(5, gt=0)
    silence_timeout_s: float = Field(300, gt=0, description="longest wait for the first or the next byte of an answer")
    comment_after_s: float = Field(
        15, ge=0, le=3600, description="silence in a stream before its client gets a comment; 0 for never"
    )
    max_attempts: int = Field(3, ge=1, le=10, description="backends tried before the first byte")
    default_max_tokens: int = Field(512, ge=1, description="answer length reserved when a request names none")


class Names(Section):
    """How names of persons are looked for (extra `ner`) where a policy asks for it."""

    processes: int = Field(1, ge=1, le=64)
    budget_s: float = Field(5, gt=0, description="seconds for one request; what takes longer is refused")
    max_characters: int = Field(200_000, ge=1, description="of one request; a longer one is refused")
    cached_texts: int = Field(10_000, ge=0, description="texts of a tenant whose names are remembered, by keyed hash")


class Inspection(Section):
    """How long prompts are inspected: in processes of their own, so that no other call waits for them."""

    processes: int = Field(2, ge=1, le=64, description="started when first needed; a tenant uses one at a time")
    budget_s: float = Field(30, gt=0, description="seconds for one prompt; what takes longer is refused")


class Audit(Section):
    """Settings of the record. Values that a policy keeps are deleted when their time is over, each
    `retention_every_s`."""

    reserve_bytes: int = Field(64 * MIB, ge=0, description="kept so that running requests can be closed on a full disk")
    anchor_every_s: float = Field(60, ge=1, description="how often checkpoints of all tenants are anchored")
    retention_every_s: float = Field(86400, ge=60, description="how often values over their time are deleted")
    backup_days: int = Field(30, ge=0, description="how long backups of side.db live; certificates of erasure state it")
    ledger_days: int | None = Field(
        None, ge=62, le=3660, description="how long the ledger keeps single calls; without it, as long as their record"
    )
    usage_days: int | None = Field(
        None,
        ge=62,
        le=3660,
        description="how long daily sums of usage are kept; without it, as long as their calls",
    )
    address_days: int = Field(30, ge=0, le=3650, description="how long the addresses of refused callers are kept")
    timestamp_url: str | None = Field(
        None, pattern=r"^https?://", description="of a time-stamping authority (RFC 3161)"
    )
    timestamp_ca: Path | None = Field(None, description="the roots that its tokens are trusted by, PEM")
    timestamp_every_s: float = Field(86400, ge=60, description="how often the anchor's checkpoint is time-stamped")

    @model_validator(mode="after")
    def _authority_has_roots(self) -> Self:
        if (self.timestamp_url is None) != (self.timestamp_ca is None):
            raise ValueError(
                "timestamp_url or timestamp_ca is missing, and a token without a CA to verify it proves nothing; "
                "set both or neither"
            )
        return self


class Database(Section):
    """Control plane, record and value store in PostgreSQL; without a URL each is a file of the data folder. URLs here
    hold no password: that is in a file, or the whole URL is, or in DOMICILE_DATABASE_URL, DOMICILE_AUDIT_DATABASE_URL
    and DOMICILE_VALUES_DATABASE_URL."""

    pool_size: int = Field(10, ge=3, le=1000, description="connections to PostgreSQL at most")
    url: str | None = Field(None, description="of the control plane, as postgresql://domicile@host/control")
    record_url: str | None = Field(None, description="of the record, as postgresql://domicile@host/record")
    values_url: str | None = Field(
        None, description="of the value store and the keys above it, as postgresql://domicile@host/values"
    )
    url_file: Path | None = Field(None, description="file whose only line is the control plane's URL")
    record_url_file: Path | None = Field(None, description="file whose only line is the record's URL")
    values_url_file: Path | None = Field(None, description="file whose only line is the value store's URL")
    password_file: Path | None = Field(None, description="file with the password of `url`, `record_url`, `values_url`")

    @field_validator("url", "record_url", "values_url")
    @classmethod
    def without_password(cls, value: str | None) -> str | None:
        if value is None:
            return None
        try:
            database_of(value, "it")
        except StoreError as error:
            raise ValueError(str(error)) from None
        if ":" in value.partition("://")[2].rpartition("@")[0] or "password=" in value:
            raise ValueError("the URL holds a password; name the file it is in by database.password_file")
        return value

    @model_validator(mode="after")
    def one_source(self) -> Self:
        for url, file, key in (
            (self.url, self.url_file, "url"),
            (self.record_url, self.record_url_file, "record_url"),
            (self.values_url, self.values_url_file, "values_url"),
        ):
            if url is not None and file is not None:
                raise ValueError(f"both {key} and {key}_file are set; set one of the two")
        return self


ExternalName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,31}$")]


class Vault(Section):
    """The transit engine of a HashiCorp Vault. Off this host only with TLS."""

    address: str | None = None
    namespace: str | None = None
    mount: str = Field("transit", pattern=r"^[A-Za-z0-9_-]+(/[A-Za-z0-9_-]+)*$")
    key: str = Field("domicile", pattern=r"^[A-Za-z0-9_-]+$", description="the master key's name")
    signing_key: str | None = Field(None, pattern=r"^[A-Za-z0-9_-]+$", description="signs the record, if set")
    token_file: Path | None = None
    ca_file: Path | None = None
    timeout_s: float = Field(5, gt=0, le=60)
    retries: int = Field(2, ge=0, le=10)

    @field_validator("address")
    @classmethod
    def safe(cls, value: str | None) -> str | None:
        if value is None:
            return None
        try:
            parts = urlsplit(value)
            host, plain = parts.hostname or "", not (parts.username or parts.query or parts.fragment)
            good = parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host))
        except ValueError:
            good = False
        if not good or not host or not plain or parts.path.strip("/"):
            raise ValueError(
                "this is not an https URL of a host; give one (http on this machine only), without path or user"
            )
        return value


class Pkcs11(Section):
    """A key in an HSM, through the manufacturer's PKCS#11 library; needs the extra ``domicile[pkcs11]``."""

    module: Path | None = Field(None, description="the manufacturer's library, such as /usr/lib/softhsm/libsofthsm2.so")
    token: str | None = Field(None, min_length=1, max_length=32, description="label of the token")
    key: str = Field("domicile", pattern=r"^[A-Za-z0-9_-]{1,64}$", description="label of the AES-256 key")
    pin_file: Path | None = Field(None, description="holds the user's PIN")
    timeout_s: float = Field(5, gt=0, le=60)


class ExternalKey(Section):
    """A tenant's own key, which no installation makes: where it is, and what lets this gateway use it."""

    provider: Literal["vault", "pkcs11"]
    vault: Vault = Vault()
    pkcs11: Pkcs11 = Pkcs11()

    @model_validator(mode="after")
    def whole(self) -> Self:
        _require_whole(self.provider, self.vault, self.pkcs11)
        return self


class Secrets(Section):
    """Who holds the master key: a file in the data folder, Vault or an HSM. `external`: keys of tenants' own, by name,
    for `domicile tenant update --key`."""

    provider: Literal["file", "vault", "pkcs11"] = "file"
    vault: Vault = Vault()
    pkcs11: Pkcs11 = Pkcs11()
    external: dict[ExternalName, ExternalKey] = Field(default_factory=dict)

    @model_validator(mode="after")
    def whole(self) -> Self:
        _require_whole(self.provider, self.vault, self.pkcs11)
        if taken := {"file", "vault", "pkcs11", "installation"} & self.external.keys():
            raise ValueError(f"external.{min(taken)} has the name of a provider; give the key another name")
        return self


def _require_whole(provider: str, vault: Vault, pkcs11: Pkcs11) -> None:
    if provider == "vault" and (vault.address is None or vault.token_file is None):
        raise ValueError("vault.address or vault.token_file is missing; set both for provider vault")
    if provider == "pkcs11" and None in (pkcs11.module, pkcs11.token, pkcs11.pin_file):
        raise ValueError("pkcs11.module, pkcs11.token or pkcs11.pin_file is missing; set all for provider pkcs11")


class Log(Section):
    """What the gateway writes to stderr. `access`: a line for each call, which names the caller's address."""

    format: Literal["text", "json"] = "text"
    access: bool = Field(False, description="a log line for each call: caller, route, status, backend, tokens, time")


class Telemetry(Section):
    """`otlp_endpoint`: where spans go (OTLP/HTTP); needs the extra ``domicile[otel]``. Spans never hold content."""

    otlp_endpoint: str | None = None
    sample_ratio: float = Field(1.0, ge=0, le=1)
    max_tenant_labels: int = Field(200, ge=0, description="tenants named in metrics; the rest count as 'other'")


class Peer(Section):
    """Another cell whose configuration of its tenants is pulled."""

    cell: str = Field(pattern=f"^{NAME.pattern}$")
    url: str
    verifier_key_file: Path
    ca_file: Path | None = None

    @field_validator("url")
    @classmethod
    def safe(cls, value: str) -> str:
        if not is_safe_url(value):
            raise ValueError(
                "this is not an https URL; give one (http only on this machine), without query or fragment"
            )
        return value


class Cells(Section):
    """`pull`: cells whose tenants are served here too."""

    pull: tuple[Peer, ...] = Field(default_factory=tuple)
    every_s: float = Field(5, ge=0.1, le=3600, description="seconds between two questions to each")


class Sinks(Section):
    """Where data of every call is stored apart from its backend, as ISO 3166 countries: a policy's `store_in`
    binds it. `record`: this data folder, its database and what counts limits. `telemetry`: where spans are kept."""

    record: str | None = None
    telemetry: str | None = None

    @field_validator("record", "telemetry")
    @classmethod
    def country(cls, value: str | None) -> str | None:
        if value is not None and value not in builtin_countries().known:
            raise ValueError("this is not an ISO 3166 alpha-2 country code; give one in upper case, such as FR")
        return value


class Kubernetes(Section):
    """Where backends are pods; see `regions.launchers.kubernetes_objects.ClusterSettings`."""

    namespace: str = "domicile-backends"
    image: str = "domicile-backend:0.1.0"
    models: str = Field("models", description="claim whose volume holds the weights")
    kernels: str | None = Field(None, description="claim for compiled kernels, kept over restarts")
    runtime_class: str | None = None
    gateway_namespace: str = "domicile"
    cpu: str = "4"
    memory: str = "32Gi"
    surge: bool = Field(True, description="on an update the new pod before the old goes; needs a second GPU")


WeightsName = Annotated[
    str, Field(max_length=200, pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*$")
]  # inside the folder of models, and nowhere else
DraftName = Annotated[
    str,
    Field(max_length=200, pattern=r"^(eagle3:)?[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*$"),
]


class Fleet(Section):
    """Settings of deployments. `launcher` local: backends are processes of this machine; kubernetes: pods of this
    cluster."""

    launcher: Literal["local", "kubernetes", "none"] = "local"
    kubernetes: Kubernetes = Kubernetes()
    models: Path | None = Field(None, description="folder of weights; default: models in the data folder")
    gpus: tuple[int, ...] = Field(default_factory=tuple, description="device numbers that backends may be given")
    adapters: Path | None = Field(None, description="folder of LoRA adapters that backends of this machine may load")
    max_adapters: int = Field(0, ge=0, le=511, description="how many a backend may have at a time; 0: none")
    max_adapter_rank: int = Field(16, ge=1, le=256, description="the highest rank of one")
    draft_models: dict[WeightsName, DraftName] = Field(
        default_factory=dict,
        description="weights of a deployment -> what guesses for it: weights of a smaller model, eagle3:NAME or mtp",
    )
    evidence: Path | None = Field(None, description="program that says what hardware of this machine attests")
    waiting_per_tenant: int = Field(64, ge=0, le=100_000, description="calls that may wait for a backend to start")
    every_s: float = Field(1.0, ge=0.05, le=60, description="how often what runs is compared with what shall")

    @property
    def on_this_machine(self) -> bool:
        """Backends run on the gateway's host: its memory, GPUs and folder of weights are theirs."""
        return self.launcher == "local"


class GroupRole(Section):
    """Who is in `group` at the identity provider has `role`: in `tenant`, or as staff of the installation."""

    group: str = Field(min_length=1, max_length=256)
    role: Role
    tenant: str | None = Field(None, pattern=f"^{NAME.pattern}$")
    staff: bool = Field(
        False, description="in every tenant; has to be stated explicitly, so that no omission grants it"
    )

    @model_validator(mode="after")
    def somewhere(self) -> Self:
        if (self.tenant is None) != self.staff:
            raise ValueError(
                f"group {self.group} has both a tenant and staff, or neither; set either tenant: NAME or staff: true"
            )
        if self.role == "operator" and not self.staff:
            raise ValueError("only staff can be operator; set staff: true, or another role")
        return self


class ProjectGrant(Section):
    """A machine whose token names `group` calls models for `project` of `tenant`, as a key of that project would."""

    group: str = Field(min_length=1, max_length=256)
    tenant: str = Field(pattern=f"^{NAME.pattern}$")
    project: str = Field(pattern=f"^{NAME.pattern}$")


class AcceptedEvidence(Section):
    """What evidence of one technology is compared with. `roots`: of vendors beside those that are built in."""

    roots: tuple[Path, ...] = Field(default_factory=tuple, description="PEM files of root certificates")
    measurements: tuple[str, ...] = Field(default_factory=tuple, description="accepted ones, hexadecimal digits")
    golden: Path | None = Field(None, description="nvidia: JSON file of accepted values by index of the measurement")
    minimum: dict[str, int] = Field(default_factory=dict, description="the lowest security versions, by name")
    pcrs: tuple[int, ...] = Field(default_factory=tuple, description="tpm: the registers that a quote is over")
    collateral: Path | None = Field(None, description="tdx: folder with a folder for each FMSPC, of what Intel signed")
    revoked: tuple[Path, ...] = Field(default_factory=tuple, description="PEM or DER files of revocation lists")


class Attestation(Section):
    """Evidence of backends' hardware that is accepted (docs/weights-and-hardware.md)."""

    every_s: float = Field(3600, ge=60, le=86400, description="how often evidence is requested again")
    accepted: dict[Technology, AcceptedEvidence] = Field(default_factory=dict)


class WorkloadGrant(Section):
    """Whoever `subject` is at an issuer of workloads: has `role` in `tenant` or as `staff`, or calls models for
    `project` of `tenant`."""

    subject: str = Field(min_length=1, max_length=255)
    role: Role | None = None
    tenant: str | None = Field(None, pattern=f"^{NAME.pattern}$")
    staff: bool = False
    project: str | None = Field(None, pattern=f"^{NAME.pattern}$")

    @model_validator(mode="after")
    def one_thing(self) -> Self:
        if (self.role is None) == (self.project is None):
            raise ValueError(f"subject {self.subject} has both a role and a project, or neither; set one of them")
        if (self.tenant is None) != self.staff or (self.project is not None and self.staff):
            raise ValueError(
                f"subject {self.subject} has both a tenant and staff, or neither; set either tenant: NAME or, with a "
                "role, staff: true"
            )
        if self.role == "operator" and not self.staff:
            raise ValueError("only staff can be operator; set staff: true, or another role")
        return self


class WorkloadIssuer(Section):
    """Who signs tokens of workloads, as a Kubernetes cluster or a CI. `ca_file`: of its private authority;
    `token_file`: the gateway's own token, where what it publishes is not public."""

    issuer: str
    audience: str = Field(min_length=1, max_length=255)
    ca_file: Path | None = None
    token_file: Path | None = None
    max_minutes: int = Field(60, ge=1, le=1440, description="life of a token, from iat to exp")
    grants: tuple[WorkloadGrant, ...] = Field(min_length=1)

    @field_validator("issuer")
    @classmethod
    def safe(cls, value: str) -> str:
        if not is_safe_url(value):
            raise ValueError("issuer is no https URL without query and fragment; write one (http only on this machine)")
        return value


class Oidc(Section):
    """The identity provider through which people log in (with `redirect_uri`) and machines show tokens (`audience`)."""

    issuer: str | None = None
    client_id: str | None = None
    client_secret_file: Path | None = None
    device_client_id: str | None = Field(
        None, description="the public client by which people log in from a command line (RFC 8628)"
    )
    redirect_uri: str | None = None
    post_logout_redirect_uri: str | None = Field(None, description="where the provider sends browsers after a logout")
    audience: str | None = None
    scope: str = "openid profile"
    groups_claim: str = "groups"
    roles: tuple[GroupRole, ...] = Field(default_factory=tuple)
    projects: tuple[ProjectGrant, ...] = Field(default_factory=tuple)
    session_minutes: int = Field(60, ge=1, le=720)
    clock_skew_s: int = Field(60, ge=0, le=300)
    keys_max_age_s: int = Field(14400, ge=60, le=86400)

    @model_validator(mode="after")
    def whole(self) -> Self:
        fault = self._set_without_issuer() if self.issuer is None else self._unsafe_url() or self._contradiction()
        if fault is not None:
            raise ValueError(fault)
        return self

    def _set_without_issuer(self) -> str | None:
        """Why settings that need an issuer are refused; None where there are none."""
        set_alone = (
            self.client_id, self.client_secret_file, self.device_client_id, self.redirect_uri, self.audience,
        )  # fmt: skip
        return "without issuer the rest has no meaning" if any(set_alone) or self.roles or self.projects else None

    def _unsafe_url(self) -> str | None:
        """Why the first URL that `is_safe_url` refuses is refused; None where all are safe."""
        addresses = {"issuer": self.issuer, "redirect_uri": self.redirect_uri,
                     "post_logout_redirect_uri": self.post_logout_redirect_uri}  # fmt: skip
        for name, url in addresses.items():
            if url is not None and not is_safe_url(url):
                return f"{name} must be an https URL (http only on this machine), without query or fragment"
        return None

    def _contradiction(self) -> str | None:
        """The first rule between the settings of a provider that is broken, as a sentence; None where all hold."""
        rules = (
            (
                bool(self.redirect_uri or self.audience or self.device_client_id),
                "set redirect_uri or device_client_id for people to log in, audience for machines' tokens, or several",
            ),
            (self.redirect_uri is None or self.client_id is not None, "redirect_uri needs client_id"),
            (
                not self.projects or self.audience is not None,
                "projects are called by machines, whose tokens need an audience",
            ),
            (
                self.audience is None or self.audience not in (self.client_id, self.device_client_id),
                "audience must not be the client_id or device_client_id: a person's ID token would open what a "
                "machine's does",
            ),
            ("openid" in self.scope.split(), "scope must hold openid"),
        )
        return next((sentence for holds, sentence in rules if not holds), None)


def is_safe_url(url: str) -> bool:
    """Whether it is https, or http to this machine, and nothing but scheme, host and path."""
    try:
        parts = urlsplit(url)
        local = is_loopback(parts.hostname or "")
        _ = parts.port
    except ValueError:
        return False
    plain = not (parts.query or parts.fragment or parts.username or parts.password) and url.isprintable()
    return plain and bool(parts.hostname) and (parts.scheme == "https" or (parts.scheme == "http" and local))


class Price(Section):
    """What a model's tokens cost a tenant, in euros a million."""

    input_eur_per_million: float = Field(ge=0)
    output_eur_per_million: float = Field(ge=0)
    batch_discount: int = Field(0, ge=0, le=100, description="percent off for lines of batches")

    @property
    def amounts(self) -> tuple[float, float]:
        return self.input_eur_per_million, self.output_eur_per_million


class Batches(Section):
    """Bounds of files and batches, and how the lines of batches are worked off beside interactive calls."""

    max_file_bytes: int = Field(100 * MIB, ge=1024, description="of one uploaded file")
    max_lines: int = Field(50_000, ge=1, le=1_000_000, description="of one uploaded file")
    max_tenant_bytes: int = Field(4096 * MIB, ge=1024, description="of all files of a tenant, results included")
    max_active: int = Field(100, ge=1, le=10_000, description="batches of a tenant that are not over")
    max_waiting: int = Field(1000, ge=0, le=100_000, description="responses of a tenant that wait in the background")
    concurrent_lines: int = Field(8, ge=0, le=1024, description="of a tenant at one time; 0: no batch is worked here")
    beside_interactive: int = Field(
        4,
        ge=1,
        le=1024,
        description="calls in flight at a server without priorities, from which on it gets no line",
    )
    lease_s: float = Field(
        15, ge=1, le=300, description="until another gateway continues the batches of one that ended"
    )


class Webhook(Section):
    """A receiver of events of operation, by signed POST. `networks`: those within which its address has to be; without
    it the address has to be a public one."""

    name: str = Field(pattern=f"^{NAME.pattern}$")
    url: str
    secret_file: Path
    events: tuple[str, ...] = Field(min_length=1, description="types of events, or all that begin alike: incident.*")
    tenants: tuple[str, ...] | None = Field(None, description="of these alone; without it of all, and of the cell")
    networks: tuple[Network, ...] = Field(default_factory=tuple, description="where its address has to be, if inside")

    @field_validator("url")
    @classmethod
    def safe(cls, value: str) -> str:
        if not is_safe_url(value):
            raise ValueError("this is not an https URL; give one (http only on this machine), without query or user")
        return value

    @field_validator("events")
    @classmethod
    def known(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in value:
            if not any(matches(pattern, each) for each in WEBHOOK_EVENTS):
                near = get_close_matches(pattern, WEBHOOK_EVENTS, 1)
                raise ValueError(
                    f"{pattern!r} is no type of event that is sent; "
                    + (f"did you mean {near[0]}?" if near else "docs/monitoring.md lists them")
                )
        return value


def matches(pattern: str, kind: str) -> bool:
    """Whether a type of event is `pattern`, or begins with it where that ends with ``.*``."""
    return kind.startswith(pattern[:-1]) if pattern.endswith(".*") else kind == pattern


class Scim(Section):
    """Provisioning by the identity provider. `token_file`: what it shows as bearer. `subject`: which attribute of a
    user is the provider's ``sub``."""

    token_file: Path | None = None
    subject: Literal["externalId", "userName"] = "externalId"


class Approvals(Section):
    """Decisions of two people. `wait_hours`: how long a person or token that an administrator made through the admin
    API does not count as a second one, unless another role vouches for it; 0: it counts at once."""

    wait_hours: int = Field(72, ge=0, le=2160)


class Settings(BaseSettings):
    """A gateway's configuration. What belongs to the cell as a whole is in the folder `data`."""

    model_config = SettingsConfigDict(env_prefix="DOMICILE__", env_nested_delimiter="__", frozen=True, extra="forbid")

    data: Path = Path("domicile-data")
    node: str = Field(default_factory=lambda: socket.gethostname().split(".")[0].lower() or "node")
    listen: Listen = Listen()
    requests: Requests = Requests()
    batches: Batches = Batches()
    names: Names = Names()
    inspection: Inspection = Inspection()
    audit: Audit = Audit()
    database: Database = Database()
    secrets: Secrets = Secrets()
    log: Log = Log()
    telemetry: Telemetry = Telemetry()
    sinks: Sinks = Sinks()
    cells: Cells = Cells()
    fleet: Fleet = Fleet()
    attestation: Attestation = Attestation()
    oidc: Oidc = Oidc()
    scim: Scim = Scim()
    approvals: Approvals = Approvals()
    workloads: tuple[WorkloadIssuer, ...] = Field(default_factory=tuple, description="machines by where they run")
    webhooks: tuple[Webhook, ...] = Field(default_factory=tuple, description="receivers of incidents, budgets, ...")
    prices: dict[str, Price] = Field(default_factory=dict, description="by model; needed where a policy sets a budget")

    @model_validator(mode="after")
    def provisioned_people_can_log_in(self) -> Self:
        if self.scim.token_file is not None and self.oidc.issuer is None:
            raise ValueError("scim provisions people of the identity provider; set oidc.issuer")
        return self

    @model_validator(mode="after")
    def one_rule_for_each_issuer(self) -> Self:
        issuers = [each.issuer for each in self.workloads]
        if len(set(issuers)) < len(issuers) or self.oidc.issuer in issuers:
            raise ValueError("an issuer of workloads is given twice, or is oidc.issuer; name each issuer once")
        return self

    @field_validator("webhooks")
    @classmethod
    def each_by_its_name(cls, value: tuple[Webhook, ...]) -> tuple[Webhook, ...]:
        if len({each.name for each in value}) < len(value):
            raise ValueError("two webhooks have one name; give each its own")
        return value

    @field_validator("data")
    @classmethod
    def absolute(cls, value: Path) -> Path:
        return value.expanduser().absolute()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (env_settings, init_settings)  # the environment overrides the file


def load_settings(path: Path | None = None, **overrides: Any) -> Settings:
    """Read `path` (YAML) under the environment. Raises SettingsError with the key path of the first mistake."""
    values: dict[str, Any] = {}
    if path is not None:
        try:
            read = yaml.safe_load(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise SettingsError(f"cannot read {path}: {error.strerror}; name a readable file by --config") from error
        except UnicodeDecodeError as error:
            raise SettingsError(f"{path} is not UTF-8 text; save it as UTF-8") from error
        except yaml.YAMLError as error:
            raise SettingsError(f"{path} is not YAML: {error}; correct the YAML") from error
        if read is not None and not isinstance(read, dict):
            raise SettingsError(
                f"{path}: expected a mapping at the top, found {type(read).__name__}; begin with a key, such as listen:"
            )
        values = read or {}
        if isinstance(values.get("data"), str):  # a relative path in a file counts from the file's folder
            values["data"] = path.parent / values["data"]
    try:
        return Settings(**{**values, **overrides})
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        problem = _unknown(first["loc"]) if first["type"] == "extra_forbidden" else invalid_value(first)
        raise SettingsError(f"{path or 'settings'}: {place or 'top level'}: {problem}") from error


def _unknown(place: tuple[int | str, ...]) -> str:
    """The message for an unknown key, with the nearest known one."""
    section: Any = Settings
    for name in place[:-1]:
        field = getattr(section, "model_fields", {}).get(name)
        section = field.annotation if field is not None else None
    near = get_close_matches(str(place[-1]), getattr(section, "model_fields", {}), 1)
    return f"unknown key; did you mean {near[0]}?" if near else "unknown key; docs/configuration.md lists them all"
