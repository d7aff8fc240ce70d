"""What deployments would cost on other cards: the planner's prediction of a replica at full use.

Energy is not predicted: it is what the tenant's calls of the same model took on replicas with such a card, if any did.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from gateway.database.database import Database
from gateway.installation.installation import Installation
from gateway.store.reports.cost_report import cost, eur_per_million
from gateway.store.reports.fleet_inventory import deployments_in
from regions.errors import LaunchError
from regions.launchers.planning import KNOWN_CARDS, plan


@dataclass(frozen=True, slots=True)
class Card:
    """A kind of GPU and what an hour of one costs."""

    name: str
    eur_per_hour: float

    @classmethod
    def parse(cls, said: str) -> "Card":
        """From ``h100=2.50``. Raises ValueError."""
        name, _, price = said.partition("=")
        try:
            card = cls(name, float(price))
        except ValueError:
            raise ValueError(f"{said[:40]!r} is no price of a card; write CARD=EUR, as h100=2.50") from None
        if name not in KNOWN_CARDS or not 0 <= card.eur_per_hour < 1e6:
            raise ValueError(
                f"{said[:40]!r} is not known to the planner; name one of {', '.join(KNOWN_CARDS)}, "
                "at 0 to a million euros"
            )
        return card


class Planned(BaseModel):
    """A deployment's replica on a card. `refusal`: why it does not fit, or why nothing can be said."""

    model_config = ConfigDict(frozen=True)

    tenant: str
    deployment: str
    card: str
    eur_per_hour: float
    tokens_per_second: float | None = None
    eur_per_million_tokens: float | None = None
    joules_per_1000_tokens: float | None = None
    refusal: str | None = None


def on_cards(
    database: Database, installation: Installation, tenant: str | None, cards: Sequence[Card]
) -> list[Planned]:
    """Replicas and their cards of every living deployment of `tenant`, or of all tenants."""
    tenants = [tenant] if tenant else [each.id for each in installation.inventory(database).tenants()]
    models = installation.models()
    found = []
    for each in tenants:
        lines = cost(database, tenant=each, by=("model", "gpu"))
        joules = {(line.model, line.gpu): line.joules_per_1000_tokens for line in lines}
        for deployment in deployments_in(database, each).items:
            if deployment.deleted_at is None:
                weights = models / deployment.weights
                for card in cards:
                    planned = _planned(each, deployment.id, weights, deployment.calls_each, card)
                    known = {"joules_per_1000_tokens": joules.get((deployment.model, card.name))}
                    found.append(planned.model_copy(update=known))
    return found


def _planned(tenant: str, deployment: str, weights: Path, calls: int, card: Card) -> Planned:
    named = {"tenant": tenant, "deployment": deployment, "card": card.name, "eur_per_hour": card.eur_per_hour}
    try:
        made = plan(weights, card.name, calls=calls)
    except LaunchError as error:
        return Planned(**named, refusal=str(error))
    if made["refusal"] is not None:
        return Planned(**named, refusal=str(made["refusal"]))
    rate = float(made["tokens_per_s"])
    return Planned(**named, tokens_per_second=rate, eur_per_million_tokens=eur_per_million(card.eur_per_hour, rate))
