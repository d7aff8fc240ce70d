"""Selection of backends: those that a decision allows, best first, with a final check before each call."""

from collections import Counter
from collections.abc import Collection, Sequence
from functools import partial
from time import perf_counter
from types import TracebackType

from gateway.configuration.bounds import Bounds
from gateway.content.prompt import takes_priorities
from gateway.directory.backend_registry import BackendRegistry
from gateway.errors import BackendRefused, BackendUnavailable, GatewayError, InternalError
from gateway.request.stages import Parsed, Route
from gateway.upstream.client import Target
from gateway.upstream.credentials import TenantCredentials
from gateway.upstream.request_token import PrefillPlace
from policy.decision.decision import Decision
from regions.errors import IsolationError
from regions.fleet.demand import DemandTracker
from regions.fleet.fleet import BUSY_RANK, Backend, Call, CallInFlight, Fleet
from regions.routing.prefixes import PrefixIndex, block_hashes
from regions.routing.router import Candidates, affinity_key, cheapest, choose, trials

MAX_DECISIONS = 10_000
PROMPTS_AHEAD = 4
"""By how many calls the queue of a backend that computes prompts may be the longer one (see `_waits_longer`)."""


class Routes:
    """`bounds` limit how many backends are tried for one request before the first byte of its answer."""

    def __init__(
        self,
        fleet: Fleet,
        registry: BackendRegistry,
        credentials: TenantCredentials,
        bounds: Bounds,
        tracker: DemandTracker | None = None,
        beside_interactive: int = 4,
    ) -> None:
        """`beside_interactive`: number of calls at a server without priorities from which it gets no batch lines."""
        self._beside_interactive = beside_interactive
        self._lines: Counter[str] = Counter()  # batch lines in flight at each backend
        self._tracker = tracker or DemandTracker()
        self._fleet = fleet
        self._registry = registry
        self._credentials = credentials
        self._bounds = bounds
        self._targets: dict[str, Target] = {}  # by id, because hashing a backend reads all of its fields
        self._prefixes = PrefixIndex()
        self._caches: dict[str, Backend] = {}  # the backends whose caches the index describes
        self._allowed: dict[int, tuple[Decision, Candidates, Candidates | None]] = {}

    def choose(self, request: Parsed, decision: Decision, tried: Collection[str] = ()) -> list[Route]:
        """Return the backends to call, best first, without those already `tried`.

        At most as many as attempts are left. Empty if no backend that the decision allows is available.
        """
        candidates = self._candidates(request.principal.tenant, request.call.model, decision)
        if request.client.batch is not None:
            return self._for_batch(candidates, decision, tried)
        text = request.call.leading_text.encode()
        prefix = block_hashes(text, request.principal.project.encode())  # each project has its own cache
        holders = self._prefixes.longest(prefix)
        contents = None if self._prefixes.settled(prefix) else self._prefixes.contents
        most = self._bounds.now.max_attempts + len(tried)  # so that enough are left without those tried
        ordered = choose(candidates, self._fleet.live(), affinity_key(text), holders, most, contents=contents)
        for_prompts = self._for_prompts(decision)
        prefill: Route | None = None
        if for_prompts is not None:
            found = [
                each
                for each in choose(for_prompts, self._fleet.live(), affinity_key(text), holders)
                if each.id not in tried
            ]
            ordered = ordered or found  # where no other is up, those for prompts answer as well
            prefill = self._route(found[0], decision, prefix) if found else None
        if tried:
            ordered = [each for each in ordered if each.id not in tried][: self._bounds.now.max_attempts - len(tried)]
        return [self._route(backend, decision, prefix, prefill) for backend in ordered]

    def _for_prompts(self, decision: Decision) -> Candidates | None:
        """The backends that compute prompts for others, which the decision allows; None without any. After
        `_candidates`."""
        known = self._allowed.get(id(decision))
        return None if known is None or known[0] is not decision else known[2]

    def prefill_place(self, route: Route) -> PrefillPlace | None:
        """Where the prompt of a call is computed, if not by the backend that answers it."""
        if route.prefill is None or route.prefill.backend.transfer is None:
            return None
        backend = route.prefill.backend
        host, _, port = (backend.transfer or "").rpartition(":")
        return PrefillPlace(backend.id, backend.uri, host.strip("[]"), int(port), route.backend.uri)

    def _for_batch(self, candidates: Candidates, decision: Decision, tried: Collection[str]) -> list[Route]:
        """Return the result of `choose` for a batch line.

        Backends with room beside interactive calls come first, then the cheapest.
        """
        ordered = [each for each in cheapest(candidates, self._fleet.live()) if each.id not in tried]
        ordered.sort(key=lambda backend: not self._leaves_room(backend))
        return [self._route(each, decision, ()) for each in ordered[: self._bounds.now.max_attempts - len(tried)]]

    def has_room(self, tenant: str, model: str) -> bool:
        """Return whether a batch line may be sent now.

        Engines with priorities schedule it after interactive calls themselves; other servers must have few of these in
        flight. True if no backend is available, because the call itself reports that.
        """
        live = self._fleet.live()
        able = [each for each in self._registry.backends(tenant, model) if live[each.id].available]
        return not able or any(map(self._leaves_room, able))

    def _leaves_room(self, backend: Backend) -> bool:
        if takes_priorities(backend):
            return True
        load = self._fleet.live().get(backend.id)
        return load is not None and load.rank - self._lines[backend.id] < self._beside_interactive

    def trials(self, request: Parsed, decision: Decision, tried: Collection[str] = ()) -> list[Route]:
        """Return the result of `choose` for a call whose allowed backends are all in back-off after failures.

        Trying one of them instead of refusing the call means that a tenant's only backend is used again as soon as it
        works.
        """
        candidates = self._candidates(request.principal.tenant, request.call.model, decision)
        left = [each for each in trials(candidates, self._fleet.live()) if each.id not in tried]
        prefix = block_hashes(request.call.leading_text.encode(), request.principal.project.encode())
        return [
            self._route(backend, decision, prefix) for backend in left[: self._bounds.now.max_attempts - len(tried)]
        ]

    def _route(
        self, backend: Backend, decision: Decision, prefix: Sequence[int], prefill: Route | None = None
    ) -> Route:
        if prefill is not None and (backend.role != "decode" or self._waits_longer(prefill.backend, backend)):
            prefill = None
        return Route(backend, self._registry.facts_of(backend), decision.transfer_basis[backend.id], prefix, prefill)

    def _waits_longer(self, prefill: Backend, backend: Backend) -> bool:
        """Whether so many more prompts are queued at the first that the second computes one sooner itself."""
        live = self._fleet.live()
        return live[prefill.id].rank > live[backend.id].rank + PROMPTS_AHEAD

    def _candidates(self, tenant: str, model: str, decision: Decision) -> Candidates:
        """Return the backends that the decision allows to answer, cached by decision: a change of the fleet makes a new
        one. Those that are there for prompts are among them only where there is no other."""
        known = self._allowed.get(id(decision))
        if known is not None and known[0] is decision:
            return known[1]
        names = frozenset(decision.backends)
        backends = self._registry.backends(tenant, model)
        allowed = [backend for backend in backends if backend.id in names]
        for_prompts = [each for each in allowed if each.role == "prefill" and each.transfer is not None]
        candidates = Candidates(tenant, [each for each in allowed if each not in for_prompts] or allowed)
        if len(self._allowed) >= MAX_DECISIONS:
            self._allowed.clear()
        prefill = Candidates(tenant, for_prompts) if for_prompts else None
        self._allowed[id(decision)] = decision, candidates, prefill
        return candidates

    def in_flight(self, request: Parsed, decision: Decision, route: Route) -> "InFlight":
        """Check the backend once more before connecting, and count the call while the context is active.

        Fails closed: entering raises InternalError for a backend outside the decision, and BackendUnavailable for one
        of another tenant or one that is no longer in the fleet.
        """
        tenant = request.principal.tenant
        calls = [self._fleet.call(route.backend, tenant=tenant)]
        if route.prefill is not None:
            calls.append(self._fleet.call(route.prefill.backend, tenant=tenant))
        return InFlight(self, calls, request, decision, route)

    def _end(self, request: Parsed, route: Route) -> None:
        if request.client.batch is not None:
            self._lines[route.backend.id] -= 1
        self._tracker.ended(request.principal.tenant, self._base_of(request))

    def _begin(self, flights: Sequence[CallInFlight], request: Parsed, decision: Decision, route: Route) -> Call:
        allowed, prefill = decision.backends, route.prefill
        if route.backend.id not in allowed or (prefill is not None and prefill.backend.id not in allowed):
            raise InternalError("A backend outside the decision was about to be called; nothing was sent")
        begun: list[Call] = []
        try:
            for flight in flights:
                begun.append(flight.__enter__())
            if prefill is not None:
                begun[0].when_answered = flights[1].end  # the prompt is computed: it waits there no longer
            if request.client.batch is None:
                self._remember(route)
                if route.prefill is not None:
                    self._remember(route.prefill)
            else:
                self._lines[route.backend.id] += 1
            self._tracker.began(request.principal.tenant, self._base_of(request))
        except BaseException as error:  # the block is not entered, so nothing else ends the calls
            for flight in flights[: len(begun)]:
                flight.__exit__(None, None, None)
            if isinstance(error, IsolationError):
                raise BackendUnavailable("The backend was taken out of service", retry_after_s=1) from None
            raise
        return begun[0]

    def _base_of(self, request: Parsed) -> str:
        """The model whose backends are in demand."""
        return self._registry.base_of(request.principal.tenant, request.call.model)

    def serves_as_named(self, request: Parsed) -> bool:
        """Whether backends serve the model by the name that the call has; of an adapter they serve its base."""
        return self._base_of(request) == request.call.model

    def may_help(self, failure: GatewayError | None, route: Route) -> bool:
        """Return whether `route` may be tried after `failure`.

        After a refusal because of a rate limit, only backends that are not busy are tried. Otherwise, a client over its
        limits would load every backend.
        """
        load = self._fleet.live().get(route.backend.id)
        if load is None or not (load.available or load.tried_at is not None):
            # Changed since the route was chosen: out of service, in back-off, or enough calls try it already
            return False
        return not isinstance(failure, BackendRefused) or load.rank < BUSY_RANK

    def answered(self, request: Parsed, call: Call, called: float | None) -> None:
        """Note that the backend has started a successful answer; for a stream, with its first event.

        `called`: when the backend was called, in `perf_counter` seconds.
        """
        call.answered()
        if request.call.stream and called is not None:
            waited_ms = (perf_counter() - called) * 1000
            self._tracker.first_token(request.principal.tenant, self._base_of(request), waited_ms)

    def _remember(self, route: Route) -> None:
        name = route.backend.id
        if self._caches.get(name) is not route.backend:  # new, or restarted with an empty cache
            self._prefixes.forget(name)
            self._caches[name] = route.backend
        self._prefixes.remember(name, route.prefix)

    def forget(self) -> None:
        """Drop cached data of backends that have left the fleet."""
        living = set(self._fleet)
        self._targets = {name: target for name, target in self._targets.items() if target.backend in living}
        for name in [name for name, backend in self._caches.items() if backend not in living]:
            self._prefixes.forget(name)
            del self._caches[name]

    def target(self, backend: Backend) -> Target:
        """Return the address and TLS context of a backend."""
        known = self._targets.get(backend.id)
        if known is None or known.backend is not backend:
            tls = partial(self._credentials.context_for, backend) if backend.url.startswith("https:") else None
            known = self._targets[backend.id] = Target(backend.id, backend.url.rstrip("/"), tls, backend)
        return known


class InFlight:
    """The context manager of `Routes.in_flight`."""

    __slots__ = ("_decision", "_flights", "_request", "_route", "_routes")

    def __init__(
        self, routes: Routes, flights: Sequence[CallInFlight], request: Parsed, decision: Decision, route: Route
    ) -> None:
        """flights: to the backend that answers, and to the one that computes the prompt if there is one."""
        self._routes, self._flights = routes, flights
        self._request, self._decision, self._route = request, decision, route

    def __enter__(self) -> Call:
        return self._routes._begin(self._flights, self._request, self._decision, self._route)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._routes._end(self._request, self._route)
        for flight in reversed(self._flights):
            flight.__exit__(kind, error, trace)
