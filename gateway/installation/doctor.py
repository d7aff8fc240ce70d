"""Every weak default in force, by name: what is allowed for a first try and should not be left so.

`configuration_warnings` is pure: it judges settings and what was seen of the state. `observe` looks.
"""

import ipaddress
import logging
import os
import resource
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit

from audit.errors import KeyProviderError
from audit.keys.external_keys import brief_waits
from audit.keys.owner_keys import KeyRing
from gateway.configuration.database_urls import urls_of
from gateway.configuration.settings import Settings, is_loopback
from gateway.configuration.sinks import spans_leave, stays_here
from gateway.database.database import Database
from gateway.installation.folder_access import writable_by_others
from gateway.installation.installation import Installation
from gateway.installation.rotation import unencrypted_files
from gateway.store.reports.posture import Posture, posture
from gateway.workers.worker_names import gateway_of

logger = logging.getLogger("domicile.weak")

KEYS_WITHIN_S = 3.0
NAMED = 3  # names in one sentence


@dataclass(frozen=True, slots=True)
class ConfigurationWarning:
    """`code`: its name in docs/warnings.md; `says`: the finding; `fix`: what to do."""

    code: str
    says: str
    fix: str


@dataclass(frozen=True, slots=True)
class DoctorFacts:
    """Facts that are checked in addition to the settings. `nodes`: the gateways that have opened this record."""

    posture: Posture = field(default_factory=Posture)
    database_url: str | None = None
    redis_url: str | None = None
    authority_here: bool = False
    signer_here: bool = False
    secrets_in_clear: tuple[str, ...] = ()
    loose_folders: tuple[str, ...] = ()
    witnessed: bool = False
    nodes: tuple[str, ...] = ()
    core_dumps: bool = False
    root: bool = False
    keys_away: tuple[tuple[str, str], ...] = ()


def observe(settings: Settings, installation: Installation, database: Database) -> DoctorFacts:
    """Raises StoreError, KeyProviderError, SettingsError."""
    urls = urls_of(settings.database)
    audit = installation.audit_log.parent
    nodes = sorted(path.name.removeprefix("node-").removesuffix(".lock") for path in audit.glob("node-*.lock"))
    witnessed = audit / "witnessed"
    return DoctorFacts(
        posture=posture(database),
        database_url=urls.control,
        redis_url=urls.redis,
        authority_here=installation.authority_key.exists(),
        signer_here=(audit / "signer.key").exists(),
        secrets_in_clear=tuple(map(str, unencrypted_files(installation))),
        loose_folders=tuple(map(str, writable_by_others(installation.data))),
        witnessed=witnessed.is_dir() and any(witnessed.iterdir()),
        nodes=tuple(name for name in nodes if not name.startswith(("cli-", "gateway."))),
        core_dumps=resource.getrlimit(resource.RLIMIT_CORE)[0] != 0,
        root=os.geteuid() == 0,
        keys_away=_keys_away(installation.keys),
    )


def _keys_away(ring: KeyRing) -> tuple[tuple[str, str], ...]:
    """Tenants whose own key is not to be had, with its name; all are asked at once, for KEYS_WITHIN_S together.

    Where no such key is configured nobody is looked at: there may be ten thousand tenants.
    """
    if not ring.external.names:
        return ()
    names = {owner: name for owner in ring.owners() if (name := ring.external_of(owner)) is not None}
    away, ends = set(names), time.monotonic() + KEYS_WITHIN_S
    while away and time.monotonic() < ends:
        for owner in sorted(away):
            with brief_waits(), suppress(KeyProviderError):
                ring.warm(owner)
                away.discard(owner)
        time.sleep(0.05 if away else 0)
    return tuple((owner, names[owner]) for owner in sorted(away))


def configuration_warnings(settings: Settings, state: DoctorFacts) -> list[ConfigurationWarning]:
    return [found for check in _CHECKS for found in check(settings, state)]


def log_warnings(found: Sequence[ConfigurationWarning]) -> None:
    """One line each, its code first, so that logs can be searched for it."""
    for one in found:
        logger.warning("weak default %s: %s; %s", one.code, one.says, one.fix)


# --- the network -----------------------------------------------------------------------------------------------------


def _listening(settings: Settings, state: DoctorFacts) -> list[ConfigurationWarning]:
    listen = settings.listen
    found = []
    if listen.tls_ended_by_proxy and listen.cert_file is None and not is_loopback(listen.host):
        found.append(
            ConfigurationWarning(
                "plain_behind_proxy",
                f"{listen.host} takes calls without TLS, trusting that only a proxy on this host or pod reaches it",
                "set listen.cert_file and listen.key_file, or listen on 127.0.0.1",
            )
        )
    wide = [str(network) for network in listen.operators if _is_wide(network)]
    if wide:
        found.append(
            ConfigurationWarning(
                "open_metrics",
                f"/metrics, which names tenants, can be read from {', '.join(wide)}",
                "name the networks of your monitoring in listen.operations_from",
            )
        )
    return found


def _is_wide(network: ipaddress.IPv4Network | ipaddress.IPv6Network) -> bool:
    return network.prefixlen == 0 or not (network.is_private or network.is_loopback or network.is_link_local)


def _stores(settings: Settings, state: DoctorFacts) -> list[ConfigurationWarning]:
    found = []
    if state.database_url is not None and _is_unverified(state.database_url):
        found.append(
            ConfigurationWarning(
                "database_unverified",
                "the database is on another host, and its certificate is not checked",
                "end DOMICILE_DATABASE_URL in ?sslmode=verify-full",
            )
        )
    if state.redis_url is not None and _is_plain_elsewhere(state.redis_url, ("redis",)):
        found.append(
            ConfigurationWarning(
                "redis_plain", "Redis is on another host, reached without TLS", "use rediss:// in DOMICILE_REDIS_URL"
            )
        )
    shared = (state.database_url or "").startswith("postgres")
    gateways = {gateway_of(node) for node in state.nodes}  # the workers of one have their limits together
    if state.redis_url is None and not shared and len(gateways) > 1:
        found.append(
            ConfigurationWarning(
                "limits_of_one_process",
                f"{len(gateways)} gateways use this folder, and each allows the whole of every limit",
                "set DOMICILE_REDIS_URL, or DOMICILE_DATABASE_URL to PostgreSQL",
            )
        )
    return found


def _is_unverified(url: str) -> bool:
    parts = urlsplit(url)
    if not parts.scheme.startswith("postgres") or not parts.hostname or is_loopback(parts.hostname):
        return False
    return parse_qs(parts.query).get("sslmode", ["prefer"])[-1] != "verify-full"


def _is_plain_elsewhere(url: str, plain: tuple[str, ...]) -> bool:
    parts = urlsplit(url)
    return parts.scheme in plain and bool(parts.hostname) and not is_loopback(parts.hostname or "")


# --- keys ------------------------------------------------------------------------------------------------------------


def _keys(settings: Settings, state: DoctorFacts) -> list[ConfigurationWarning]:
    found = []
    if settings.secrets.provider == "file":
        found.append(
            ConfigurationWarning(
                "master_key_beside_data",
                "the master key is a file on the disk that holds what it protects",
                "set secrets.provider: vault or pkcs11, then run domicile secrets rewrap and retire",
            )
        )
    for tenant, name in state.keys_away:
        found.append(
            ConfigurationWarning(
                "external_key_away",
                f"the key of tenant {tenant}, {name}, cannot be used: nothing that is kept of this tenant can be read",
                f"see that secrets.external.{name} is configured and reachable, and that its holder has not taken it"
                " away",
            )
        )
    if state.secrets_in_clear:
        found.append(
            ConfigurationWarning(
                "secrets_in_clear",
                f"not sealed, though the master key is elsewhere: {', '.join(state.secrets_in_clear)}",
                "run domicile secrets rewrap",
            )
        )
    if state.signer_here:
        found.append(
            ConfigurationWarning(
                "signing_key_here",
                "the key that signs the record is a file here: who takes it can sign another history",
                "name secrets.vault.signing_key before the first record, or have a witness cosign",
            )
        )
    if state.authority_here:
        found.append(
            ConfigurationWarning(
                "own_authority",
                "the cell's certificate authority is self-made and its key on this machine: it can issue any identity",
                "issue backends' certificates elsewhere, and leave only ca/ca.pem here",
            )
        )
    return found


# --- the record ------------------------------------------------------------------------------------------------------


def _record(settings: Settings, state: DoctorFacts) -> list[ConfigurationWarning]:
    found = []
    if not state.witnessed:
        found.append(
            ConfigurationWarning(
                "no_witness",
                "no outside witness has cosigned the record: with its key, history can be rewritten unseen",
                "let a second party run domicile audit witness serve, and submit to it",
            )
        )
    if settings.sinks.record is None:
        effect = "no policy's store_in binds it" if stays_here(settings) else "every call is refused"
        finding = f"the country in which the record is kept is not configured, so {effect}"
        found.append(ConfigurationWarning("record_country_unknown", finding, "set sinks.record"))
    if settings.audit.reserve_bytes == 0:
        found.append(
            ConfigurationWarning(
                "no_reserve",
                "no disk space is kept back: on a full disk running calls cannot be closed",
                "set audit.reserve_bytes",
            )
        )
    return found


# --- people and policies ---------------------------------------------------------------------------------------------


def _people(settings: Settings, state: DoctorFacts) -> list[ConfigurationWarning]:
    if settings.oidc.issuer is not None:
        return []
    return [
        ConfigurationWarning(
            "no_identity_provider",
            "administrators log in by tokens alone: no directory ends them when a person leaves",
            "set oidc.issuer",
        )
    ]


def _policies(settings: Settings, state: DoctorFacts) -> list[ConfigurationWarning]:
    seen = state.posture
    found = []
    if seen.keep_content:
        found.append(
            ConfigurationWarning(
                "content_kept",
                f"prompts and answers are kept for {_names(seen.keep_content)}",
                "retention: {content: none}, unless they are needed",
            )
        )
    if seen.mask_nothing:
        found.append(
            ConfigurationWarning(
                "nothing_masked",
                f"personal data passes to models unmasked for {_names(seen.mask_nothing)}",
                "give their policy a redaction.input",
            )
        )
    if seen.unredacted:
        found.append(
            ConfigurationWarning(
                "managed_unredacted",
                f"managed services may get prompts of {_names(seen.unredacted)} that are not redacted",
                "leave backend.managed out of their policy, and redact what gdpr-standard does",
            )
        )
    if seen.unlimited:
        found.append(
            ConfigurationWarning(
                "no_limits",
                f"a leaked key can spend without end for {_names(seen.unlimited)}",
                "give their policy limits: {rpm, tpm, eur_per_month}",
            )
        )
    return found


def _names(names: Sequence[str]) -> str:
    rest = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {rest} more" if rest > 0 else "")


# --- the process -----------------------------------------------------------------------------------------------------


def _files(settings: Settings, state: DoctorFacts) -> list[ConfigurationWarning]:
    if not state.loose_folders:
        return []
    return [
        ConfigurationWarning(
            "folder_writable_by_others",
            f"other users may replace files of the installation: they may write in {_names(state.loose_folders)}",
            "run chmod go-w on it, and chown it to the user of the gateway; or move the data folder",
        )
    ]


def _process(settings: Settings, state: DoctorFacts) -> list[ConfigurationWarning]:
    found = []
    endpoint = settings.telemetry.otlp_endpoint
    if endpoint is not None and _is_plain_elsewhere(endpoint, ("http",)):
        found.append(
            ConfigurationWarning(
                "telemetry_plain",
                "spans, which name tenants, leave this host without TLS",
                "use https:// in telemetry.otlp_endpoint",
            )
        )
    if spans_leave(settings) and settings.sinks.telemetry is None:
        found.append(
            ConfigurationWarning(
                "spans_stay_here",
                "the country in which spans are kept is not configured, so no policy lets one leave",
                "set sinks.telemetry",
            )
        )
    if endpoint is not None and settings.telemetry.sample_ratio == 1.0:
        found.append(
            ConfigurationWarning(
                "every_call_traced",
                "every call is traced: who asked what model and when is known twice, once outside the record",
                "set telemetry.sample_ratio below 1",
            )
        )
    if state.core_dumps:
        found.append(
            ConfigurationWarning(
                "core_dumps",
                "if the process crashes, its memory, prompts included, may be written to disk",
                "start it with ulimit -c 0 (LimitCORE=0)",
            )
        )
    if state.root:
        found.append(ConfigurationWarning("runs_as_root", "the gateway runs as root", "run it as a separate user"))
    return found


_CHECKS = (_listening, _stores, _keys, _files, _record, _people, _policies, _process)


def as_json(found: Sequence[ConfigurationWarning]) -> list[Mapping[str, str]]:
    return [{"code": one.code, "says": one.says, "fix": one.fix} for one in found]
