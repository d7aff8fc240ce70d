"""The backends of each tenant with the facts that policies judge: the fleet, described by today's catalogue."""

import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, date, datetime
from math import inf
from typing import Any

from gateway.directory.shown import Shown
from gateway.errors import ModelNotFound
from gateway.records.adapters import AdapterRecord
from gateway.records.control import BackendRecord
from policy.facts import BackendFacts
from regions.catalogue.catalogue import Catalogue
from regions.fleet.deployment import Deployment
from regions.fleet.fleet import Backend, Fleet
from regions.identity.trust import watermarks

BACKEND_FIELDS = set(Backend.model_fields)
DAY_S = 86400


class BackendRegistry:
    def __init__(self, fleet: Fleet, catalogue: Catalogue, clock: Callable[[], float] = time.time) -> None:
        """`clock`: seconds since the epoch; days begin at midnight in UTC."""
        self._fleet = fleet
        self._catalogue = catalogue
        self._clock = clock
        self._day = date.min
        self._midnight = -inf  # at which that day began
        self._shown: dict[str, tuple[Backend, Shown]] = {}
        self._facts: dict[str, tuple[Backend, BackendFacts]] = {}  # by id: hashing a backend reads all of its fields
        self._candidates: dict[tuple[str, str], tuple[BackendFacts, ...]] = {}
        self._deployments: dict[tuple[str, str], Deployment] = {}
        self._bases: dict[tuple[str, str], str] = {}

    @property
    def catalogue_version(self) -> str:
        return self._catalogue.version

    def use(self, catalogue: Catalogue) -> None:
        """Describe all backends by `catalogue` from now on."""
        self._catalogue = catalogue
        self._midnight = -inf

    def replace(
        self,
        records: Iterable[BackendRecord],
        deployments: Iterable[Deployment] = (),
        adapters: Iterable[AdapterRecord] = (),
    ) -> None:
        """Replace all backends, deployments and adapters by those of the control store."""
        self._bases = {(each.tenant, each.called): each.model for each in adapters}
        self._deployments = {(each.tenant, each.model): each for each in deployments if not each.draining}
        self._fleet.replace(Backend.model_validate(r.model_dump(include=BACKEND_FIELDS)) for r in records)
        living = {each.id: each for each in self._fleet}
        self._shown = {name: known for name, known in self._shown.items() if living.get(name) is known[0]}
        self._midnight = -inf

    def models(self, tenant: str) -> tuple[str, ...]:
        """Names of the models that `tenant` may call, sorted: of backends, and of deployments that can start one."""
        promised = {model for owner, model in self._deployments if owner == tenant}
        return tuple(sorted(promised.union(self._fleet.models(tenant))))

    def base_of(self, tenant: str, model: str) -> str:
        """The model that backends serve: of an adapter, `base:adapter`, its base; of any other, itself. A model that is
        called like an adapter goes first."""
        base = self._bases.get((tenant, model))
        if base is None or self._fleet.candidates(tenant, model) or (tenant, model) in self._deployments:
            return model
        return base

    def deployment(self, tenant: str, model: str) -> Deployment | None:
        """The deployment that starts backends for `model`, if there is one."""
        return self._deployments.get((tenant, self.base_of(tenant, model)))

    def facts(self, tenant: str, model: str) -> tuple[BackendFacts, ...]:
        """Facts of every backend of `tenant` that serves `model`, whether it is running or not, and of those that a
        deployment can start: where a call may go does not depend on what is running. The same tuple until something
        changes."""
        self._today()
        known = self._candidates.get((tenant, model))
        if known is None:
            base = self.base_of(tenant, model)
            known = tuple(self.facts_of(backend) for backend in self._fleet.candidates(tenant, base))
            known += self._potential(tenant, base, {fact.region for fact in known})
            if base != model:  # which backends of our own load when it is called
                served = {"models": (model,)}
                known = tuple(fact.model_copy(update=served) for fact in known if fact.kind == "domicile")
            if known:  # made-up names are not cached
                self._candidates[tenant, model] = known
        return known

    def backends(self, tenant: str, model: str) -> tuple[Backend, ...]:
        """The registered backends of `tenant` that serve `model`."""
        base = self.base_of(tenant, model)
        found = self._fleet.candidates(tenant, base)
        return found if base == model else tuple(each for each in found if each.kind == "domicile")

    def show(self, backend: Backend, shown: Shown | None) -> bool:
        """What `backend` has shown of itself; None: nothing is known of it any more. Returns whether that is news."""
        known = self._shown.get(backend.id)
        if (known[1] if known is not None and known[0] is backend else None) == shown:
            return False
        if shown is None:
            del self._shown[backend.id]
        else:
            self._shown[backend.id] = backend, shown
        self._facts.pop(backend.id, None)
        others = {key: facts for key, facts in self._candidates.items() if key[0] != backend.tenant}
        self._candidates = others  # calls of other tenants are not judged again
        return True

    def facts_of(self, backend: Backend) -> BackendFacts:
        """Facts of one backend as of today."""
        day = self._today()
        known = self._facts.get(backend.id)
        if known is None or known[0] is not backend:
            facts = self._catalogue.backend_facts(
                backend_id=backend.id,
                tenant=backend.tenant,
                region=backend.region,
                models=backend.models,
                day=day,
                kind=backend.kind,
                single_tenant=backend.single_tenant,
                watermarks=watermarks(backend.kind, backend.trust),
            ).model_copy(update=self._shown_facts(backend))
            known = self._facts[backend.id] = backend, facts
        return known[1]

    def _shown_facts(self, backend: Backend) -> dict[str, Any]:
        if backend.kind != "domicile":
            declared = backend.weights_sha256
            return {"weights": declared, "weights_source": None if declared is None else "declared"}
        pinned, known = {"weights_pinned": backend.weights_sha256}, self._shown.get(backend.id)
        if known is None or known[0] is not backend:
            return pinned | {"pending": True}
        return pinned | known[1].facts

    def _potential(self, tenant: str, model: str, up: set[str | None]) -> tuple[BackendFacts, ...]:
        """Facts of one backend of our own in each region of the deployment that has none."""
        deployment = self._deployments.get((tenant, model))
        if deployment is None:
            return ()
        return tuple(
            self._catalogue.backend_facts(
                backend_id=deployment.potential(region),
                tenant=tenant,
                region=region,
                models=(model,),
                day=self._today(),
                kind="domicile",
                single_tenant="attested",
                watermarks=True,
            ).model_copy(update={"pending": True})
            for region in deployment.regions
            if region not in up
        )

    def _today(self) -> date:
        """Today; drops cached facts when the day changed, since catalogue entries are valid by the day."""
        now = self._clock()
        if not 0 <= now - self._midnight < DAY_S:
            self._midnight = now // DAY_S * DAY_S
            self._day, self._facts, self._candidates = datetime.fromtimestamp(now, UTC).date(), {}, {}
        return self._day


def no_such_model(offered: Sequence[str]) -> ModelNotFound:
    """The error for an unknown model. It lists the offered models and does not repeat the requested name, which may be
    anything, even a key in the wrong field."""
    there_are = f"; there are: {', '.join(offered[:10])}" if offered else ""
    return ModelNotFound(f"That model does not exist, or is not offered to you{there_are}", param="model")
