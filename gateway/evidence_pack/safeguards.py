"""Which safeguards of GDPR 32(1) the configuration implies, and which it rules out: one statement for each cause.

No statement here is a constant of the product: each follows from a backend's registration, a deployment, a policy or
the installation's keys, and names it. Part of an evidence pack (GDPR 30(1)(g), 30(2)(d)).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from audit.incidents.pack_inputs import Activity, Measure, Store, Terms
from gateway.records.control import BackendRecord

TRANSPORT = "GDPR 32(1)(a)"
ISOLATION = "GDPR 32(1)(b)"
MINIMISATION = "GDPR 25(1), 32(1)(a)"
STORAGE = "GDPR 5(1)(e), 32(1)(a)"
PLACE = "GDPR 25(1), 44"
INTEGRITY = "GDPR 32(1)(b)"


@dataclass(frozen=True, slots=True)
class Keys:
    """Where keys are kept, ``file`` or ``vault``: the master key of kept values, and the key that signs the record."""

    master: str
    signing: str = "file"


def measures(
    backends: Iterable[BackendRecord],
    launched: Mapping[str, str],
    activities: Sequence[Activity],
    terms: Mapping[str, Terms],
    keys: Keys,
    stores: Iterable[Store] = (),
) -> tuple[Measure, ...]:
    """`launched`: deployment by backend id; `terms` by policy hash. Revoked backends are left out."""
    living = [one for one in backends if one.revoked_at is None]
    return (
        *(measure for one in living for measure in _of_backend(one, launched.get(one.id))),
        *(measure for one in activities for measure in _of_activity(one, terms.get(one.policy_hash))),
        *_of_keys(terms.values(), keys),
        *(_of_store(one) for one in stores),
    )


def certified_identity(backend: BackendRecord) -> str:
    """The URI that the backend's certificate carries, empty where it has no certificate of the cell."""
    return backend.uri if backend.kind == "domicile" and backend.url.startswith("https://") else ""


def _of_backend(backend: BackendRecord, deployment: str | None) -> Iterator[Measure]:
    name = f"backend {backend.id}"
    yield _transport(backend, name)
    yield _tenancy(backend, name)
    if deployment is not None:
        yield _launch(backend, name, deployment)


def _transport(backend: BackendRecord, name: str) -> Measure:
    registered = f"registered as kind {backend.kind}"
    if backend.url.startswith("http://"):
        says = "calls stay on the gateway's own host, without TLS"
        return _measure(TRANSPORT, name, says, f"{registered} at a loopback address", in_place=False)
    if certified_identity(backend):
        says = "mutual TLS 1.3; the certificate must carry exactly this tenant, region and backend"
        return _measure(TRANSPORT, name, says, f"{registered}, identity {backend.uri}")
    trust = backend.trust
    proofs = []
    if trust is not None and trust.pin is not None:
        proofs.append(f"the certificate must be the one with SHA-256 {trust.pin}")
    if trust is not None and trust.ca is not None:
        proofs.append(f"the certificate must be signed by the registered CA for {trust.name or _host(backend)}")
    if not proofs:
        return _measure(TRANSPORT, name, "no certificate or CA is registered", registered, in_place=False)
    return _measure(TRANSPORT, name, f"TLS; {' and '.join(proofs)}", f"{registered} with this trust")


def _tenancy(backend: BackendRecord, name: str) -> Measure:
    if backend.single_tenant == "attested":
        says = "it serves this tenant alone, as its certificate attests"
        return _measure(ISOLATION, name, says, "single_tenant: attested")
    if backend.single_tenant == "declared":
        says = "it serves this tenant alone, as its registration declares; nothing attests it"
        return _measure(ISOLATION, name, says, "single_tenant: declared")
    says = "it may serve other tenants too"
    return _measure(ISOLATION, name, says, "not registered as single-tenant", in_place=False)


def _launch(backend: BackendRecord, name: str, deployment: str) -> Measure:
    """A launcher's address shows which it is: a Service of a cluster, or a process of the gateway's host."""
    if _host(backend).endswith(".svc"):
        says = (
            "a pod on a node labelled for this tenant; its NetworkPolicy admits the gateways only and lets nothing out"
        )
        return _measure(ISOLATION, name, says, f"started by deployment {deployment} as Kubernetes Service")
    says = "a process of the gateway's host, without a separate network policy"
    return _measure(ISOLATION, name, says, f"started by deployment {deployment} as local process", in_place=False)


def _of_activity(activity: Activity, terms: Terms | None) -> Iterator[Measure]:
    name = f"activity {activity.id}"
    if terms is None:
        yield _measure(PLACE, name, "no policy decides its calls, so every call is refused", "no policy in force")
        return
    policy = f"policy {terms.policy_hash[:16]}"
    yield _redaction(name, "prompts", terms.redacts_prompts, policy)
    if terms.unredacted_to:
        says = f"a prompt whose redaction fails is sent as it is to {terms.unredacted_to}"
        yield _measure(MINIMISATION, name, says, f"{policy}, redaction.on_failure: sovereign", in_place=False)
    yield _redaction(name, "answers", terms.redacts_answers, policy)
    if terms.content_days:
        says = (
            f"prompts and answers are kept for {terms.content_days} days, encrypted under a key of the person or "
            "record and one of the tenant; erasure destroys the key"
        )
        yield _measure(STORAGE, name, says, f"{policy}, retention.content")
    else:
        yield _measure(STORAGE, name, "no prompt or answer is kept", f"{policy}, retention.content: none")
    says = f"calls are processed in {terms.process_in} and stored in {terms.store_in} only; others are refused before"
    yield _measure(PLACE, name, f"{says} data is sent", f"{policy}, residency")


def _redaction(name: str, what: str, actions: Mapping[str, str], policy: str) -> Measure:
    key = "redaction.input" if what == "prompts" else "redaction.output"
    if not actions:
        return _measure(MINIMISATION, name, f"{what} are not redacted", f"{policy}, no {key}", in_place=False)
    told = ", ".join(f"{label} {action}" for label, action in actions.items())
    return _measure(MINIMISATION, name, f"in {what} these are treated: {told}", f"{policy}, {key}")


def _of_keys(terms: Iterable[Terms], keys: Keys) -> Iterator[Measure]:
    """The key that signs the record; and keys above kept values, of interest only where some policy keeps any."""
    if keys.signing == "vault":
        says, because = "the key that signs the record is in Vault", "secrets: vault, signing_key"
        yield _measure(INTEGRITY, "the record", says, because)
    else:
        says = "the key that signs the record is a file on the gateway's host"
        yield _measure(INTEGRITY, "the record", says, "no secrets.vault.signing_key", in_place=False)
    if not any(one.content_days for one in terms):
        return
    if keys.master == "vault":
        yield _measure(STORAGE, "kept values", "the master key is in Vault, apart from the values", "secrets: vault")
    elif keys.master == "pkcs11":
        says = "the master key is in an HSM, apart from the values"
        yield _measure(STORAGE, "kept values", says, "secrets: pkcs11")
    else:
        says = "the master key is a file on the same host as the values"
        yield _measure(STORAGE, "kept values", says, "secrets: file", in_place=False)


def _of_store(store: Store) -> Measure:
    if not store.country:
        says = "the country in which it is kept is not configured"
        return _measure(PLACE, store.name, says, f"{store.setting} is not set", in_place=False)
    place = "inside" if store.in_eea else "outside"
    says = f"it is kept in {store.country}, {place} the EEA"
    return _measure(PLACE, store.name, says, store.setting, in_place=bool(store.in_eea))


def _host(backend: BackendRecord) -> str:
    return urlsplit(backend.url).hostname or ""


def _measure(article: str, applies_to: str, says: str, because: str, *, in_place: bool = True) -> Measure:
    return Measure(article=article, applies_to=applies_to, says=says, because=because, in_place=in_place)
