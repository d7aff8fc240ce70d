"""What an evidence pack needs and no record says: the parties, the registers, the policy texts and their terms.

The operator of the log supplies it from its own registers (`evidence_sources`) or as a JSON file. What is not supplied
stays empty in the pack and is named as missing (`audit.registers.gaps`). Where a record holds a fact, the pack states
the record's.
"""

from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Annotated, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)

from audit.errors import AuditError
from audit.events.base import Sha256
from audit.files.untrusted_file import read_untrusted
from audit.law.lei import check_lei


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


def _empty_or_lei(code: str) -> str:
    return check_lei(code) if code else ""


def _empty_or_day(text: str) -> str:
    try:
        return text and str(date.fromisoformat(text))
    except ValueError:
        raise ValueError(f"{text!r} is no day of the calendar; write 2026-12-03") from None


Lei = Annotated[str, AfterValidator(_empty_or_lei)]
CountryOrNone = Annotated[str, StringConstraints(pattern=r"^([A-Z]{2})?$")]
DayOrNone = Annotated[str, StringConstraints(pattern=r"^(\d{4}-\d{2}-\d{2})?$"), AfterValidator(_empty_or_day)]
TypeOfService = Annotated[str, StringConstraints(pattern=r"^(eba_TA:S(0[1-9]|1[0-9]))?$")]
"""Closed list of B_02.02.0060 (ITS 2024/2956, Annex III)."""


class Party(_Entry):
    """A controller or processor, with what Article 30 asks of it (GDPR 30(1)(a), 30(2)(a)). `lei` as in ISO 17442."""

    name: str = ""
    address: str = ""
    country: CountryOrNone = ""
    contact: str = ""
    representative: str = ""
    dpo: str = ""
    lei: Lei = ""


class Activity(_Entry):
    """A processing activity (GDPR 30(1)(b), (c)).

    `special_categories`: those of `data_classes` that GDPR 9(1) names. `policy_hash`: of the policy that decides its
    calls now. `source`: where its data come from (GDPR 14(2)(f)).
    """

    id: str
    purpose: str = ""
    legal_basis: str = ""
    data_classes: tuple[str, ...] = ()
    special_categories: tuple[str, ...] = ()
    subject_categories: tuple[str, ...] = ()
    risk_class: str = ""
    ai_system_id: str = ""
    policy_hash: str = ""
    source: str = ""


class Operator(_Entry):
    """Who controls backends, and who controls them (GDPR 28(4), 30(1)(d); DORA 28(3); C5 BC-01). What the catalogue
    does not know is empty."""

    id: str
    entity: str
    head_office: CountryOrNone
    ultimate_parent: str
    parent_country: CountryOrNone
    lei: str = ""
    valid_from: str = ""
    valid_to: str = ""
    source: str = ""


class Subprocessor(_Entry):
    """GDPR 28(2), (4). `register_version`: of the operator's list that names it, empty for the operator's own row;
    `announced` and `objection_until` are that list's."""

    operator: str
    name: str
    country: str = ""
    does: str = ""
    register_version: str = ""
    announced: str = ""
    objection_until: str = ""
    valid_from: str = ""
    valid_to: str = ""
    source: str = ""


class Safeguard(_Entry):
    """What a transfer to one country by one operator rests on (GDPR 45 to 49), as the catalogue attests it."""

    operator: str
    country: str
    basis: str
    reference: str
    valid_from: str = ""
    valid_to: str = ""


class Backend(_Entry):
    """One replica of the tenant: where it computes and stores, and how it proves who it is.

    `identity`: the URI in its certificate, empty where no certificate carries one. `launched_by`: the deployment that
    started it, empty where it was registered by hand.
    """

    id: str
    region: str
    region_name: str = ""
    compute_country: str = ""
    storage_country: str = ""
    operator: str = ""
    models: tuple[str, ...] = ()
    kind: str = ""
    single_tenant: str = ""
    identity: str = ""
    launched_by: str = ""
    registered_at: str = ""
    revoked_at: str = ""


class Measure(_Entry):
    """A safeguard of GDPR 32(1) that a configuration or record implies, or one that it rules out (`in_place` false).

    `applies_to`: the backend, activity or store concerned; `because`: the setting or record that says so.
    """

    article: str
    applies_to: str
    says: str
    because: str
    in_place: bool = True

    def __str__(self) -> str:
        return f"{self.applies_to}: {self.says} ({self.because})"


class Terms(_Entry):
    """What the policy of that hash makes of a call. Days of retention, 0 for none; actions by label.

    `unredacted_to`: the places that may receive a prompt as it is when its redaction fails, empty where such a prompt
    is refused.
    """

    policy_hash: Sha256
    metadata_days: int
    content_days: int
    redacts_prompts: dict[str, str] = {}
    redacts_answers: dict[str, str] = {}
    process_in: str = ""
    store_in: str = ""
    transfer_bases: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    unredacted_to: str = ""


class Store(_Entry):
    """A place other than a backend that keeps something of every call: the record, spans.

    `country` is empty where `setting` is not set. `in_eea`: as of the day of the registers, None without a country.
    """

    name: str
    country: CountryOrNone = ""
    setting: str = ""
    in_eea: bool | None = None

    @property
    def is_transfer(self) -> bool:
        return self.in_eea is False


class Contract(_Entry):
    """The contract between controller and processor, as far as it was registered (DORA 28(3), ITS 2024/2956).

    `type_of_service` is a code of the closed list of template B_02.02 (``eba_TA:S08``), days are calendar days.
    """

    reference: str = ""
    start: DayOrNone = ""
    end: DayOrNone = ""
    governing_law: CountryOrNone = ""
    notice_days_entity: int | None = Field(None, ge=0)
    notice_days_provider: int | None = Field(None, ge=0)
    type_of_service: TypeOfService = ""
    function: str = ""

    @model_validator(mode="after")
    def _ends_after_it_starts(self) -> Self:
        if self.start and self.end and self.end <= self.start:
            raise ValueError("the contract ends before it starts (EBA validation rule v8816_m); correct start or end")
        return self


OPERATOR_SCOPE = "_operator"
"""Scope of the document that the operator puts above all tenants; no project can be called so."""


class Policy(_Entry):
    """One version of a policy; `scope` is the tenant's own (empty), a project's, or OPERATOR_SCOPE. SHA-256 of
    `text`. In force from `activated_at` until the next number of its scope."""

    scope: str = ""
    number: int
    sha256: Sha256
    text: str
    activated_by: str
    activated_at: str
    active: bool


class Part(_Entry):
    """A version of `Policy`, by its scope and number."""

    scope: str
    number: int
    sha256: Sha256


class Ruling(_Entry):
    """What versions that were in force together make: the policy that calls name by `policy_hash`.

    `canonical` is the RFC 8785 text that this is the SHA-256 of; empty where it cannot be had any more.
    """

    policy_hash: Sha256
    policy_id: str
    policy_version: str
    canonical: str
    made_of: tuple[Part, ...]


class Evidence(_Entry):
    """All of it, of one tenant.

    `as_of`: the day of the registers (``2026-03-01``), empty where it is not known. `eea`: the countries of the EEA on
    that day. `measures`: each with the configuration that implies it. `address_days`: how long the addresses of refused
    callers are kept, None where it is not known.
    """

    as_of: DayOrNone = ""
    eea: tuple[str, ...] = ()
    catalogue_version: str = ""
    controller: Party = Party()
    processor: Party = Party()
    contract: Contract = Contract()
    activities: tuple[Activity, ...] = ()
    operators: tuple[Operator, ...] = ()
    subprocessors: tuple[Subprocessor, ...] = ()
    safeguards: tuple[Safeguard, ...] = ()
    backends: tuple[Backend, ...] = ()
    policies: tuple[Policy, ...] = ()
    rulings: tuple[Ruling, ...] = ()
    terms: tuple[Terms, ...] = ()
    measures: tuple[Measure, ...] = ()
    stores: tuple[Store, ...] = ()
    address_days: int | None = None

    def purpose(self, activity: str) -> str:
        """Purpose of the activity as registered; its id where it is not."""
        return next((one.purpose for one in self.activities if one.id == activity and one.purpose), activity)

    @property
    def operators_in_use(self) -> tuple[Operator, ...]:
        """Those of backends that are not revoked, as valid on `as_of`; where no backend is registered, all of them."""
        used = {one.operator for one in self.backends if not one.revoked_at}
        concerned = (one for one in self.operators if one.id in used or not self.backends)
        return tuple(one for one in concerned if self.is_valid(one))

    @property
    def subprocessors_in_use(self) -> tuple[Subprocessor, ...]:
        """Those that operators in use engage on `as_of`: not one of an earlier register, nor one only announced."""
        used = {one.id for one in self.operators_in_use}
        return tuple(one for one in self.subprocessors if one.operator in used and self.is_valid(one))

    def is_valid(self, row: Operator | Subprocessor | Safeguard) -> bool:
        """Whether the row is in force on `as_of`; each is where that is not known."""
        return not self.as_of or row.valid_from <= self.as_of <= (row.valid_to or self.as_of)

    @classmethod
    def load(cls, path: Path) -> "Evidence":
        """From a JSON file. Raises AuditError if it is not of this form."""
        try:
            return cls.model_validate_json(read_untrusted(path, MAX_EVIDENCE, follow_links=True))
        except (OSError, ValidationError) as error:
            raise AuditError(f"the evidence in {path.name} cannot be read: {error}; correct the file") from error


MAX_EVIDENCE = 256 << 20
"""Bytes of a file of registers, with every version of every policy."""

Source = Callable[[Path, str], Evidence]
"""From a data folder and a tenant."""

evidence_sources: list[Source] = []
"""What `domicile audit export` asks where no file is given; the program that composes the commands adds its own."""


def evidence_of(data: Path, tenant: str) -> Evidence:
    """What the first source says, empty if there is none."""
    return next((source(data, tenant) for source in evidence_sources), Evidence())
