"""What a decision is made from: plain, frozen values that the caller gathers.

A fact that is not known is ``None`` or empty. It is never guessed: the decision denies on it.
Countries are ISO 3166-1 alpha-2 codes.
"""

from datetime import date
from typing import Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict

Basis = Literal["intra_eea", "adequacy", "scc", "bcr", "derogation"]
AttestedBasis = Literal["adequacy", "scc", "bcr", "derogation"]
SetName = Literal["EU", "EEA", "EEA+adequate"]
Kind = Literal["domicile", "openai", "managed"]
Managed = Literal["redacted", "unredacted"]
Tenancy = Literal["attested", "declared"]
Technology = Literal["sev-snp", "tdx", "tpm", "nvidia"]
"""Hardware that attests what runs on it."""
WeightsSource = Literal["computed", "declared"]
Priority = Literal["high", "normal", "low"]
Marking = Literal["watermark", "record", "manifest"]
"""How an answer is marked as generated, in a way that machines read (AI Act 50(2))."""


class Fact(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Subprocessor(Fact):
    """Another processor that a backend engages (GDPR 28(2), (4)), and what it does."""

    name: str
    country: str | None = None
    does: str | None = None


class Attestation(Fact):
    """Evidence for a transfer of data to one country by one recipient (GDPR 45-49).

    ``adequacy``: the recipient is inside a partial adequacy decision (DPF certification in the US, a commercial
    organisation in Canada ...). ``reference`` names the contract, list entry or approval. Valid on both end dates.
    """

    basis: AttestedBasis
    country: str
    reference: str
    valid_from: date
    valid_to: date | None = None


class BackendFacts(Fact):
    """`kind`: our own engine, which proves who it is by its certificate; any server that speaks OpenAI's API; or a
    service of another company that does (``managed``), which is known by its name alone and serves any customer.

    `single_tenant`: ``attested`` where the backend's own identity says that it serves one tenant, ``declared`` where
    only its registration does. `certifications`: those in force on the day that the facts are of. `watermarks`: it
    marks its answers by its choice of tokens, where it is asked to.

    What it shows of itself while it runs: `weights`, the SHA-256 of the checkpoint that it serves, ``computed`` by our
    engine as it loaded it or only ``declared`` by who registered the server; `weights_pinned`: what it has to be.
    `signed_by`: fingerprints of the keys that signed these weights, and of the authorities above them;
    `signature_fault`: why a signature that is there does not count. `attested`: technologies whose evidence, for a
    nonce of ours, holds now; `attestation_fault`: why that of others does not. `pending`: it has shown nothing yet, for
    it is not started, or was not asked yet; until then no call that depends on it goes there.
    """

    backend_id: str
    tenant: str | None = None
    region: str | None = None
    compute_country: str | None = None
    storage_country: str | None = None
    operator: str | None = None
    operator_hq: str | None = None
    ultimate_parent: str | None = None
    parent_country: str | None = None
    subprocessors: tuple[Subprocessor, ...] = ()
    models: tuple[str, ...] = ()
    attested_transfer: tuple[Attestation, ...] = ()
    kind: Kind | None = None
    single_tenant: Tenancy | None = None
    certifications: tuple[str, ...] = ()
    subprocessors_version: str | None = None
    watermarks: bool = False
    weights: str | None = None
    weights_source: WeightsSource | None = None
    weights_pinned: str | None = None
    signed_by: tuple[str, ...] = ()
    signature_fault: str | None = None
    attested: tuple[Technology, ...] = ()
    attestation_fault: str | None = None
    pending: bool = False


class Sink(Fact):
    """Where something of every call is stored besides its backend: the record, spans. `country`: where that is.

    `required`: no call is made without it. Nothing goes to one that is not, where a policy does not allow it.
    `setting`: by which its country is said.
    """

    name: str
    country: str | None
    required: bool = True
    setting: str = ""


class RequestFacts(Fact):
    """One request, as its key's project describes it. ``at``: the instant of the decision, with a time zone.

    `generates`: its answer is text that a model writes, and no vector, count or score."""

    tenant: str | None
    project: str | None
    model: str | None
    at: AwareDatetime
    purpose: str | None = None
    legal_basis: str | None = None
    data_classes: tuple[str, ...] = ()
    risk_class: str | None = None
    candidates: tuple[BackendFacts, ...] = ()
    catalogue_version: str | None = None
    sinks: tuple[Sink, ...] = ()
    generates: bool = True


class Membership(Fact):
    """A country or territory inside a set, from and to these days inclusive."""

    country: str
    source: str
    valid_from: date
    valid_to: date | None = None


class Adequacy(Fact):
    """One adequacy decision (GDPR 45). ``partial``: it covers some recipients only, so each must be attested.

    `framework`: ``DPF`` for the EU-US Data Privacy Framework, which a policy can refuse by one switch.
    """

    country: str
    decision: str
    scope: str
    source: str
    valid_from: date
    valid_to: date | None = None
    partial: bool = False
    framework: str | None = None


class CountrySets(Fact):
    """The dated table that residency rules are judged by. ``as_of``: the day it was last checked."""

    version: str
    as_of: date
    known: frozenset[str]
    eu: tuple[Membership, ...]
    eea: tuple[Membership, ...]
    adequacy: tuple[Adequacy, ...]
