"""The models that a caller may ask for now: those that its key is for and its policy lets run somewhere."""

from dataclasses import dataclass

from gateway.directory.backend_registry import BackendRegistry
from gateway.identity.principal import Principal
from gateway.offers.model_cards import Card, Cards
from gateway.records.model_names import ModelNameRecord
from gateway.request.enforcement import PolicyEnforcement


@dataclass(frozen=True, slots=True)
class Offered:
    """A model by the name that clients send. `record`: what the project says of the name; `target`: which model
    answers first."""

    name: str
    target: str
    card: Card
    record: ModelNameRecord | None = None


class Offers:
    def __init__(self, registry: BackendRegistry, enforcement: PolicyEnforcement, cards: Cards) -> None:
        self._registry = registry
        self._enforcement = enforcement
        self._cards = cards

    def of(self, principal: Principal) -> list[Offered]:
        """By name. Costs a look at the cached decision of each model."""
        models = self._registry.models(principal.tenant)
        names = sorted({*models, *principal.names, *principal.adapters})
        found = (self._offered(principal, name) for name in names)
        return [offered for offered in found if offered is not None]

    def _offered(self, principal: Principal, name: str) -> Offered | None:
        record = principal.names.get(name)
        if record is None:
            return self._made(principal, name, name, None) if self._enforcement.may_call(principal, name) else None
        if principal.scopes.models is not None and name not in principal.scopes.models:
            return None
        target = next((each for each in record.targets if self._enforcement.may_call(principal, each)), None)
        return None if target is None else self._made(principal, name, target, record)

    def _made(self, principal: Principal, name: str, target: str, record: ModelNameRecord | None) -> Offered:
        backends = (backend.id for backend in self._registry.backends(principal.tenant, target))
        return Offered(name, target, self._cards.of(target, backends), record)
