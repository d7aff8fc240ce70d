"""What a level makes of the bound above it: the same or less, and a LooseningError for more.

Each function takes the bound above (None: there is none), what this level wants (None: it says nothing), the rule's
name and whose the bound is, for the message.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

from policy.decision.residency import CountryRule, Selector, country_rule
from policy.document.document import BackendRule, Limits
from policy.errors import LooseningError
from policy.facts import CountrySets, Kind, Managed, Priority, Tenancy
from policy.redact.actions.plan import STRICTNESS

A = TypeVar("A", bound=str)

_URGENCY: Mapping[Priority, int] = {"low": 0, "normal": 1, "high": 2}


@dataclass(frozen=True, slots=True)
class BackendDemand:
    """What the server itself must be; None and an empty set demand nothing. `managed`: which prompts a managed
    service may get. `attested`: sets of technologies, one of which has to be shown whole."""

    kind: Kind | None = None
    single_tenant: Tenancy | None = None
    managed: Managed | None = None
    certifications: frozenset[str] = frozenset()
    attested: tuple[frozenset[str], ...] = ()


NO_DEMAND = BackendDemand()


def countries(
    rule: str, above: CountryRule | None, wanted: Selector | None, table: CountrySets, whose: str
) -> CountryRule | None:
    if wanted is None:
        return above
    own = country_rule(wanted, table)
    if above is None:
        return own
    if beyond := own.beyond(above):
        shown = ", ".join(beyond[:5]) + (" ..." if len(beyond) > 5 else "")
        raise LooseningError(rule, f"{own.name} reaches beyond {whose} {above.name}: {shown}")
    return own.within(above)


def actions(rule: str, above: Mapping[Any, A], wanted: Mapping[Any, A], whose: str) -> Mapping[Any, A]:
    for label, action in wanted.items():
        if label in above and STRICTNESS[action] < STRICTNESS[above[label]]:
            raise LooseningError(f"{rule}.{label}", f"{action} is weaker than {whose} {above[label]}")
    return MappingProxyType({**above, **wanted})


def days(rule: str, above: int | None, wanted: str | None, parse: Callable[[str], int], whose: str) -> int | None:
    if wanted is None:
        return above
    own = parse(wanted)
    if above is not None and own > above:
        raise LooseningError(rule, f"{own} d is longer than {whose} {above} d")
    return own


def limits(above: Limits, wanted: Limits, whose: str) -> Limits:
    merged: dict[str, Any] = {}
    for name in Limits.model_fields:
        ceiling, value = getattr(above, name), getattr(wanted, name)
        if value is not None and ceiling is not None and value > ceiling:
            raise LooseningError(f"limits.{name}", f"{value:g} is above {whose} {ceiling:g}")
        merged[name] = ceiling if value is None else value
    return Limits(**merged)


def priority(above: Priority | None, wanted: Priority | None, whose: str) -> Priority | None:
    if wanted is None:
        return above
    if above is not None and _URGENCY[wanted] > _URGENCY[above]:
        raise LooseningError("priority", f"{wanted} is above {whose} {above}")
    return wanted


def backend(above: BackendDemand, wanted: BackendRule, whose: str) -> BackendDemand:
    if above.kind is not None and wanted.kind not in (None, above.kind):
        raise LooseningError("backend.kind", f"{wanted.kind} is not {whose} {above.kind}")
    if above.single_tenant == "attested" and wanted.single_tenant == "declared":
        raise LooseningError("backend.single_tenant", f"declared is weaker than {whose} attested")
    if above.managed == "redacted" and wanted.managed == "unredacted":
        raise LooseningError("backend.managed", f"unredacted is weaker than {whose} redacted")
    return BackendDemand(
        wanted.kind or above.kind,
        wanted.single_tenant or above.single_tenant,
        wanted.managed or above.managed,
        above.certifications | frozenset(wanted.certifications),
        _attested(above.attested, wanted, whose),
    )


def _attested(above: tuple[frozenset[str], ...], wanted: BackendRule, whose: str) -> tuple[frozenset[str], ...]:
    own = tuple(frozenset(each.split("+")) for each in wanted.attested or ())
    for each in own if above else ():
        if not any(each >= one for one in above):
            raise LooseningError("backend.attested", f"{'+'.join(sorted(each))} is not among {whose} attestations")
    return own or above
