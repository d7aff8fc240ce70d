"""The policy document: what a tenant, or one of its projects, writes down.

Every section is optional here because a project's document names only what it tightens; `policy.decision.compile` asks
a tenant's document for what it cannot do without. Reference for writers: docs/policy-reference.md.
"""

import difflib
from collections import Counter
from collections.abc import Mapping
from datetime import date
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, get_args

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BeforeValidator,
    Discriminator,
    Field,
    PositiveFloat,
    PositiveInt,
    PrivateAttr,
    StringConstraints,
    Tag,
    ValidationError,
    WithJsonSchema,
    create_model,
    model_validator,
)

from policy.conditions.registry import form_of_document, form_of_given
from policy.document.countries import builtin_countries
from policy.document.marked_yaml import MarkedYaml, Path, dotted, parse_yaml
from policy.document.retention import parse_commitment_days, parse_content_days, parse_days
from policy.errors import PolicyDocumentError, Problem, invalid_value
from policy.facts import AttestedBasis, Basis, Kind, Managed, Marking, Priority, SetName, Technology, Tenancy
from policy.purpose import RiskClass
from policy.redact.actions.plan import INPUT_LABELS, KINDS, OUTPUT_LABELS, Action, OutputAction
from policy.redact.detectors.custom import CUSTOM_LABEL, MOST_WORDS, check_pattern
from policy.redact.detectors.custom import NAME as CUSTOM_NAME
from policy.section import NonEmpty, Section, checked_by, list_or_word

MAX_RULES = 500
"""Every request is held against each of them."""
MAX_TESTS = 500


def _country(code: str) -> str:
    if code in get_args(SetName):
        raise ValueError(f"{code} is a set, not a country; write a set by itself, not in a list")
    if code == "UK":
        raise ValueError("UK is no ISO 3166 code; did you mean GB?")
    if code not in builtin_countries().known:
        hint = f"did you mean {code.upper()}?" if code.upper() in builtin_countries().known else "write one such as FR"
        raise ValueError(f"{code!r} is no ISO 3166 alpha-2 country code; {hint}")
    return code


def _set_name(value: Any) -> Any:
    if value in get_args(SetName):
        return value
    sets = ", ".join(get_args(SetName))
    hint = f"; for one country write [{value}]" if value in builtin_countries().known else ""
    raise ValueError(f"{value!r} is no country set; there are {sets}{hint}")


def _label_of(labels: tuple[str, ...], where: str) -> AfterValidator:
    known = (*labels, *KINDS)

    def check(label: str) -> str:
        if label in known or (where == "prompts" and CUSTOM_LABEL.fullmatch(label)):
            return label
        near = difflib.get_close_matches(label, known, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ValueError(f"{label!r} is nothing that is looked for in {where}{hint}; there are {', '.join(labels)}")

    return AfterValidator(check)


Name = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9-]{0,62}$")]
COUNTRY_SCHEMA = {"type": "string", "enum": sorted(builtin_countries().known)}
Country = Annotated[str, AfterValidator(_country), WithJsonSchema(COUNTRY_SCHEMA)]
CountrySelector = Annotated[
    Annotated[Annotated[SetName, BeforeValidator(_set_name)], Tag("word")]
    | Annotated[Annotated[tuple[Country, ...], Field(min_length=1)], Tag("list")],
    Discriminator(list_or_word),
]


class OperatorRule(Section):
    head_office: CountrySelector | None = None
    ultimate_parent: CountrySelector | None = None


class Residency(Section):
    """`subprocessors`: where they may be; without it, as `process_in`. `dpf_accepted`: whether the EU-US Data Privacy
    Framework counts as an adequacy decision; without it, yes."""

    process_in: CountrySelector | None = None
    store_in: CountrySelector | None = None
    operator: OperatorRule = OperatorRule()
    subprocessors: CountrySelector | None = None
    transfer_basis: tuple[Basis, ...] | None = None
    dpf_accepted: bool | None = None


def _attested(words: str) -> str:
    """In one spelling: each technology once, in order of name."""
    found = set(words.split("+"))
    if unknown := sorted(found - set(get_args(Technology))):
        raise ValueError(f"{unknown[0]!r} attests nothing; there are {', '.join(get_args(Technology))}, joined by +")
    return "+".join(sorted(found))


Attested = Annotated[
    str,
    AfterValidator(_attested),
    WithJsonSchema({"type": "string", "pattern": r"^(sev-snp|tdx|tpm|nvidia)(\+(sev-snp|tdx|tpm|nvidia))*$"}),
]


class BackendRule(Section):
    """What the server itself must be. `attested`: its hardware shows by fresh evidence what runs there, by one of the
    list; those joined by ``+``, as in ``sev-snp+nvidia``, together. `single_tenant: attested`: its own identity must
    say so; ``declared`` will do with either. `certifications`: all of them, in force. `managed: unredacted`: a managed
    service may get prompts that are not redacted as the preset ``gdpr-standard`` does at the least."""

    kind: Kind | None = None
    single_tenant: Tenancy | None = None
    managed: Managed | None = None
    certifications: tuple[NonEmpty, ...] = ()
    attested: Annotated[tuple[Attested, ...], Field(min_length=1)] | None = None


class RuleFilter(Section):
    """A rule applies where every key it names fits; ``data_classes`` fits if one of them is in the request."""

    models: tuple[NonEmpty, ...] | None = None
    purposes: tuple[NonEmpty, ...] | None = None
    data_classes: tuple[NonEmpty, ...] | None = None
    risk_classes: tuple[RiskClass, ...] | None = None


class Rule(Section):
    """Further bounds for some requests; it adds to the sections above and lifts nothing."""

    name: Name
    when: RuleFilter = RuleFilter()
    deny: bool = False
    process_in: CountrySelector | None = None
    store_in: CountrySelector | None = None
    operator: OperatorRule = OperatorRule()
    backend: BackendRule = BackendRule()
    because: NonEmpty | None = None


def _word_list(words: tuple[str, ...]) -> tuple[str, ...]:
    if len(words) > MOST_WORDS or not all(2 <= len(word.strip()) <= 200 for word in words):
        raise ValueError(
            f"a dictionary is too long, or a word is too short or too long; give at most {MOST_WORDS} words "
            "of 2 to 200 characters"
        )
    return words


WordList = Annotated[tuple[str, ...], AfterValidator(_word_list)]
CustomName = Annotated[str, StringConstraints(pattern=rf"^{CUSTOM_NAME.pattern}$")]


class Sovereign(Section):
    """Where a prompt may go when redaction fails. All four are asked for: what is not bounded would be anywhere."""

    process_in: CountrySelector
    store_in: CountrySelector
    operator: OperatorRule

    @model_validator(mode="after")
    def _bounds_who_operates(self) -> Self:
        if self.operator.head_office is None or self.operator.ultimate_parent is None:
            raise ValueError("head_office or ultimate_parent of the operator is missing; give both")
        return self


class Redaction(Section):
    """`on_failure`: what happens to a prompt that could not be inspected; ``deny`` where nothing is said."""

    dictionaries: Mapping[CustomName, Annotated[tuple[str, ...], AfterValidator(_word_list)]] = Field(
        default_factory=dict
    )
    patterns: Mapping[CustomName, Annotated[str, AfterValidator(check_pattern)]] = Field(default_factory=dict)
    input: Mapping[Annotated[str, _label_of(INPUT_LABELS, "prompts")], Action] = Field(default_factory=dict)
    output: Mapping[Annotated[str, _label_of(OUTPUT_LABELS, "answers")], OutputAction] = Field(default_factory=dict)
    on_failure: Literal["deny", "sovereign"] | None = None
    sovereign: Sovereign | None = None

    @model_validator(mode="after")
    def _sovereign_says_where(self) -> Self:
        if (self.on_failure == "sovereign") != (self.sovereign is not None):
            raise ValueError("on_failure: sovereign and sovereign: are not both set; set both or neither")
        return self


class Retention(Section):
    """`commitments`: of answers to their activations, where `models.commitments` asks for them."""

    metadata: Annotated[str, checked_by(parse_days)] | None = None
    content: Annotated[str, checked_by(parse_content_days)] | None = None
    commitments: Annotated[str, checked_by(parse_commitment_days)] | None = None


class Limits(Section):
    """Requests a minute, tokens a minute, euros a calendar month; ``None`` is no limit."""

    rpm: PositiveInt | None = None
    tpm: PositiveInt | None = None
    eur_per_month: PositiveFloat | None = None


class Transparency(Section):
    """`marking`: how answers are marked as generated (AI Act 50(2)). What a level asks holds for all below it."""

    art50_notice: Literal["none", "header"] | None = None
    marking: tuple[Marking, ...] | None = None


FIRST_YEAR, LAST_YEAR = 1900, 2999


def _in_our_time(value: date | None) -> date | None:  # a datetime is a date
    """Away from the ends of the calendar, where some zones have no time in others."""
    if value is not None and not FIRST_YEAR <= value.year <= LAST_YEAR:
        raise ValueError(f"the year is out of range; give one from {FIRST_YEAR} to {LAST_YEAR}")
    return value


if TYPE_CHECKING:

    class GivenByConditions(Section):
        pass

else:
    GivenByConditions = create_model("GivenByConditions", __base__=Section, **form_of_given())


class Given(GivenByConditions):
    """How a test's case differs from one that the policy's own words would allow. Conditions bring fields of their
    own."""

    risk_class: NonEmpty | None = None
    at: Annotated[AwareDatetime | date | None, AfterValidator(_in_our_time)] = None
    backend_tenant: NonEmpty | None = None
    compute_country: NonEmpty | None = None
    storage_country: NonEmpty | None = None
    operator_hq: NonEmpty | None = None
    operator_parent: NonEmpty | None = None
    subprocessor_country: NonEmpty | None = None
    kind: Kind | None = None
    single_tenant: Tenancy | Literal["none"] | None = None
    certifications: tuple[NonEmpty, ...] | None = None
    attested: tuple[AttestedBasis, ...] | None = None
    watermarks: bool | None = None
    attestation: tuple[Technology, ...] | None = None
    unknown: tuple[Literal["compute_country", "storage_country", "operator_hq", "operator_parent"], ...] = ()


class PolicyTest(Section):
    name: NonEmpty
    given: Given
    expect: Literal["allow", "deny"]
    rule: NonEmpty | None = None  # a denial must name this rule


class _Head(Section):
    policy: Name
    version: PositiveInt
    extends: Name | None = None
    residency: Residency = Residency()
    backend: BackendRule = BackendRule()
    redaction: Redaction = Redaction()
    retention: Retention = Retention()
    limits: Limits = Limits()
    transparency: Transparency = Transparency()


if TYPE_CHECKING:

    class _WithConditions(_Head):
        pass

else:
    _WithConditions = create_model("_WithConditions", __base__=_Head, **form_of_document())


class PolicyDocument(_WithConditions):
    """`extends`: a preset that this document tightens. Each condition of `policy.conditions` is a key of its own."""

    priority: Priority | None = None
    rules: Annotated[tuple[Rule, ...], Field(max_length=MAX_RULES)] = ()
    tests: Annotated[tuple[PolicyTest, ...], Field(max_length=MAX_TESTS)] = ()

    _lines: Mapping[Path, int] = PrivateAttr(default_factory=lambda: MappingProxyType({}))

    @model_validator(mode="after")
    def _rules_have_names_of_their_own(self) -> Self:
        names = Counter(rule.name for rule in self.rules)
        if twice := sorted(name for name, times in names.items() if times > 1):
            raise ValueError(f"two rules are called {', '.join(twice)}; give each rule a different name")
        return self

    def says(self, condition: str) -> Any:
        """The value of a condition's key, None where the document does not have it."""
        return getattr(self, condition)

    def line(self, rule: str) -> int:
        """The line on which a dotted rule such as ``residency.process_in`` or ``rules.nights.store_in`` is written;
        0 where it is not."""
        path: Path = tuple(rule.split("."))
        if path[0] == "rules" and len(path) > 1:
            at = next((number for number, own in enumerate(self.rules) if own.name == path[1]), None)
            path = ("rules", at, *path[2:]) if at is not None else path
        while len(path) > 1 and path not in self._lines:
            path = path[:-1]
        return self._lines.get(path, 0)


def load_document(text: str) -> PolicyDocument:
    """Read a policy from YAML. Raises PolicyDocumentError with every problem and its line."""
    marked = parse_yaml(text)
    if not isinstance(marked.value, dict):
        raise PolicyDocumentError(Problem(1, "", "this is not a mapping; begin with policy: and version:"))
    try:
        document = PolicyDocument.model_validate(marked.value)
    except ValidationError as error:
        found = [dict(item) for item in error.errors(include_url=False)]
        # A list whose items are wrong is also called too short; the items are what is reported.
        problems = {_problem(item, marked) for item in found if not (item["type"] == "too_short" and item["input"])}
        raise PolicyDocumentError(*sorted(problems, key=lambda p: (p.line, p.path))) from None
    document._lines = marked.lines
    return document


def _problem(error: dict[str, Any], marked: MarkedYaml) -> Problem:
    path = _document_path(error["loc"], marked)
    match error["type"]:
        case "extra_forbidden":
            near = difflib.get_close_matches(str(path[-1]), _keys_beside(path), n=1)
            message = f"unknown key; did you mean {near[0]}?" if near else "unknown key; remove it"
        case "missing":
            message = "this key is missing; add it"
        case "too_long":
            message = f"at most {error['ctx']['max_length']} are accepted; write fewer, or divide them among projects"
        case _:
            message = invalid_value(error)
    return Problem(marked.line(path), dotted(path), message)


def _document_path(loc: tuple[str | int, ...], marked: MarkedYaml) -> Path:
    """The error's location without the names that pydantic adds for unions and mapping keys."""
    path: Path = ()
    for part in loc:
        if (*path, part) in marked.lines:
            path = (*path, part)
        elif part not in ("list", "word", "[key]") and "[" not in str(part):
            return (*path, part)
    return path


def _keys_beside(path: Path) -> list[str]:
    model: Any = PolicyDocument
    for part in path[:-1]:
        if isinstance(part, int):
            continue
        field = model.model_fields.get(part) if _is_section(model) else None
        inner = [a for a in (field.annotation, *get_args(field.annotation)) if _is_section(a)] if field else []
        if not inner:
            return []
        model = inner[0]
    return list(model.model_fields)


def _is_section(candidate: Any) -> bool:
    return isinstance(candidate, type) and issubclass(candidate, Section)
