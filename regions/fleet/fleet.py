"""The backends this gateway knows, and how they fare right now: in flight, ready, failing.

What a backend *is* (`Backend`) is frozen and comes from the control store; how it *fares* (`Load`) is this process's
own view and lives in memory. A backend whose calls keep failing is left alone for a while (circuit breaker, Nygard
2007): after `FAILURES` in a row it is out for `COOL_DOWN_S`; then one call at a time may try it. If that fails too, it
is out for twice as long, up to `LONGEST_COOL_DOWN_S`; the first answer that begins well lets it back in, and the first
that is complete ends the count of failures. A backend that answers 429 is not broken: others are preferred.

Where every backend that may answer is out, a call is tried rather than refused (`regions.routing.router.trials`): Envoy
calls this the panic threshold. `TRIALS` calls at a time may then be at one backend, so that one that comes back is not
met by all that wait for it.
"""

import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from types import TracebackType
from typing import Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, model_validator

from policy.facts import Kind, Tenancy
from regions.errors import IsolationError
from regions.fleet.engine_figures import EngineFigures, EngineRates, RecentFigures
from regions.identity.identity import BackendIdentity, parse_identity
from regions.identity.trust import Trust

Role = Literal["mixed", "prefill", "decode"]

FAILURES = 3
COOL_DOWN_S = 2.0
LONGEST_COOL_DOWN_S = 60.0
TRIALS = 4  # about what an engine runs together at the price of one
BUSY_S = 1.0  # for a backend that is over its rate and does not say how long
LONGEST_BUSY_S = 30.0
BUSY_RANK = float(1 << 20)
"""Added to the rank of a backend that answered 429: it is called only where no other can be."""


class Backend(BaseModel):
    """One running replica. Its identity, and with it tenant and region, is what its certificate must say.

    `kind` openai: a server that is not our engine. Its identity is then our name for it, and it proves who it is by
    as `trust` requires. `cost`: micro-euros that a million tokens cost there, None where no price is known.
    `weights_sha256`: what our engine has to run; of another server, what it is declared to run. `role`: what our engine
    does where prefill and decode are on backends of their own. `transfer`: HOST:PORT where one that computes prompts
    for others listens for these.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    tenant: str
    region: str
    url: str
    uri: str
    models: tuple[str, ...]
    kind: Kind = "domicile"
    single_tenant: Tenancy | None = None
    trust: Trust | None = None
    cost: int | None = None
    weights_sha256: str | None = None
    role: Role = "mixed"
    transfer: str | None = None

    @model_validator(mode="after")
    def _is_who_its_uri_says(self) -> Self:
        identity = self.identity
        if (identity.backend, identity.tenant, identity.region) != (self.id, self.tenant, self.region):
            raise ValueError(
                f"the URI {self.uri} does not name backend {self.id} of {self.tenant} in {self.region}; correct "
                "one of them"
            )
        return self

    @property
    def identity(self) -> BackendIdentity:
        """Raises IdentityError if `uri` is not a backend's."""
        identity = parse_identity(self.uri)
        if not isinstance(identity, BackendIdentity):
            raise ValueError(
                f"{self.uri} is not the identity of a backend"
                "; give spiffe://domicile.CELL/tenant/TENANT/region/REGION/backend/BACKEND"
            )
        return identity


class Load(NamedTuple):
    """`latency_s`: of the last successful call to its first byte, None before one. `available`: may be called now.

    `rank` is what backends are compared by, less is better: calls that run or wait there, by our own count or the
    engine's where that is more (other gateways call it too); behind the point how full its cache is, in eighths, and
    after that how slow it was, in doublings from 10 ms. Coarse, so that those that fare alike are alike, and the price
    decides. `key` is by what a prompt's favourite is found. `tried_at`: of one that is out and has room for a trial,
    when it failed or was tried last; else None.
    """

    in_flight: int
    latency_s: float | None
    available: bool
    rank: float = 0.0
    key: int = 0
    tried_at: float | None = None


KEY_BITS = 30  # a machine word of Python's integers, which makes a choice among many a good deal faster
FASTEST_S = 0.01
_DOUBLED_S = [FASTEST_S * 2**times for times in range(15)]
"""A latency counts 0 up to 10 ms, 1 up to 20 ms, 2 up to 40 ms ... 15."""


def short_hash(text: bytes) -> int:
    """64 bits that every gateway computes alike."""
    return int.from_bytes(blake2b(text, digest_size=8).digest())


class EngineReport(NamedTuple):
    """A backend's report of its load: sequences running and waiting, and the share of its KV cache in use (0 to 1)."""

    running: int
    waiting: int
    kv_use: float


@dataclass(slots=True)
class _State:
    key: int
    in_flight: int = 0
    latency_s: float | None = None
    ready: bool = True  # until a probe finds otherwise: a gateway that just started should not refuse
    failures: int = 0
    tried_at: float = 0.0
    out_until: float | None = None
    trials: int = 0
    busy_until: float | None = None
    cool_down_s: float = COOL_DOWN_S
    report: EngineReport | None = None
    in_flight_at_report: int = 0
    figures: RecentFigures = field(default_factory=RecentFigures)

    def available(self, now: float) -> bool:
        if not self.ready:
            return False
        return self.out_until is None or (now >= self.out_until and not self.trials)

    def close_circuit(self) -> None:
        self.failures, self.out_until, self.cool_down_s = 0, None, COOL_DOWN_S

    def load(self, now: float) -> Load:
        if self.busy_until is not None and now >= self.busy_until:
            self.busy_until = None
        rank = self._rank() + (0.0 if self.busy_until is None else BUSY_RANK)
        if self.out_until is None:
            return Load(self.in_flight, self.latency_s, self.ready, rank, self.key, None)
        order = self.tried_at if self.ready and self.trials < TRIALS else None
        return Load(self.in_flight, self.latency_s, self.available(now), rank, self.key, order)

    @property
    def changes_with_time(self) -> bool:
        return self.out_until is not None or self.busy_until is not None

    def _rank(self) -> float:
        queue: float = self.in_flight
        eighths = 0
        if self.report is not None:
            others = max(0, self.report.running + self.report.waiting - self.in_flight_at_report)
            queue += others
            eighths = min(round(self.report.kv_use * 8), 8)
        return queue + (eighths * 16 + bisect_right(_DOUBLED_S, self.latency_s or 0.0)) / 144


class Call:
    """One call in flight. Its outcome is reported here; without one (the client left) it counts neither way."""

    def __init__(self, state: _State, now: Callable[[], float]) -> None:
        self.state = state
        self._now = now
        self._began = now()
        self.when_answered: Callable[[], None] | None = None  # called with the first of a good answer
        self.is_trial = state.out_until is not None
        self._is_early = state.out_until is not None and self._began < state.out_until

    def answered(self) -> None:
        """The first of a good answer is here. One that is tried takes other calls again, on probation: until it has
        completed an answer, the next failure puts it out."""
        state = self.state
        state.latency_s = self._now() - self._began
        if self.when_answered is not None:
            self.when_answered()
        if state.out_until is not None:
            state.out_until, state.failures = None, FAILURES - 1

    def completed(self) -> None:
        """The whole of a good answer is here."""
        self.state.close_circuit()

    def busy(self, retry_after_s: float | None) -> None:
        """It answered 429 and works: other backends are preferred for as long as its Retry-After asks."""
        self.state.busy_until = self._now() + min(max(retry_after_s or BUSY_S, BUSY_S), LONGEST_BUSY_S)

    def failed(self) -> None:
        """It did not connect, broke off, or answered as only a broken backend does."""
        state = self.state
        state.failures += 1
        state.tried_at = self._now()
        if self._is_early and state.out_until is not None:
            return  # a trial before its time makes the cool-down no longer
        if self.is_trial:
            state.cool_down_s = min(state.cool_down_s * 2, LONGEST_COOL_DOWN_S)
            state.out_until = self._now() + state.cool_down_s
        elif state.out_until is None and state.failures >= FAILURES:
            state.out_until = self._now() + state.cool_down_s


class CallInFlight:
    """The block of `Fleet.call`. A class, since a generator costs a request more than what it does here."""

    __slots__ = ("_backend", "_call", "_ended", "_fleet", "_tenant")

    def __init__(self, fleet: "Fleet", backend: Backend, tenant: str) -> None:
        self._fleet, self._backend, self._tenant = fleet, backend, tenant
        self._ended = False

    def __enter__(self) -> Call:
        self._call = self._fleet._begin(self._backend, self._tenant)
        return self._call

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> None:
        """Count it no longer, though the block may run on. Harmless when it is over."""
        if not self._ended:
            self._ended = True
            self._fleet._end(self._backend, self._call)


class Fleet:
    """Backends by tenant and model, with their live state. For one event loop; not for threads."""

    def __init__(self, backends: Iterable[Backend] = (), *, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._backends: dict[str, Backend] = {}
        self._states: dict[str, _State] = {}
        self._by_tenant: dict[str, tuple[Backend, ...]] = {}
        self.replace(backends)

    def replace(self, backends: Iterable[Backend]) -> None:
        """Make these the fleet. An unchanged backend keeps its state; a changed one starts with a new one."""
        new = {backend.id: backend for backend in backends}
        for name, known in self._backends.items():
            if new.get(name) == known:
                new[name] = known  # the same object, so that who holds it is recognised at a glance
        self._states = {
            name: self._states[name]
            if self._is_member(backend)
            else _State(short_hash(name.encode()) >> (64 - KEY_BITS))
            for name, backend in new.items()
        }
        self._backends = new
        tenants: dict[str, list[Backend]] = {}
        for backend in new.values():
            tenants.setdefault(backend.tenant, []).append(backend)
        self._by_tenant = {tenant: tuple(theirs) for tenant, theirs in tenants.items()}
        now = self._now()
        self._loads = {name: state.load(now) for name, state in self._states.items()}
        self._timed = {name for name, state in self._states.items() if state.changes_with_time}

    def __iter__(self) -> Iterator[Backend]:
        return iter(self._backends.values())

    def __len__(self) -> int:
        return len(self._backends)

    def of(self, tenant: str) -> tuple[Backend, ...]:
        """All backends of `tenant`, and of no other tenant."""
        return self._by_tenant.get(tenant, ())

    def models(self, tenant: str) -> tuple[str, ...]:
        """What `tenant` can ask for, in order of name."""
        return tuple(sorted({model for backend in self.of(tenant) for model in backend.models}))

    def candidates(self, tenant: str, model: str) -> tuple[Backend, ...]:
        """Those of `tenant` that serve `model`, however they fare: where a call may go does not hang on who is up."""
        return tuple(backend for backend in self.of(tenant) if model in backend.models)

    def loads(self, backends: Iterable[Backend]) -> Mapping[str, Load]:
        """By id; one that has left the fleet is not available."""
        live = self.live()
        gone = Load(0, None, False)
        return {backend.id: live[backend.id] if self._is_member(backend) else gone for backend in backends}

    def live(self) -> Mapping[str, Load]:
        """Status of every backend in the fleet, by id; the same mapping each time, kept up to date. Not to be
        changed."""
        for name in list(self._timed):  # whose cool-down may be over by now
            self._changed(name, self._states[name])
        return self._loads

    def _changed(self, name: str, state: _State) -> None:
        if self._states.get(name) is state:  # a call may outlive its backend
            self._loads[name] = state.load(self._now())
            if state.out_until is not None or state.busy_until is not None:  # it changes with time
                self._timed.add(name)
            elif name in self._timed:
                self._timed.discard(name)

    def call(self, backend: Backend, *, tenant: str) -> "CallInFlight":
        """Count a call made for `tenant` while the block runs.

        Entering it raises IsolationError if the backend is another tenant's, or no longer in the fleet as it was
        chosen: the last look before a connection is made.
        """
        return CallInFlight(self, backend, tenant)

    def _begin(self, backend: Backend, tenant: str) -> Call:
        if backend.tenant != tenant or not self._is_member(backend):
            raise IsolationError(
                f"backend {backend.id} is not tenant {tenant}'s, or not in the fleet any more"
                "; ask again, the fleet has changed"
            )
        state = self._states[backend.id]
        call = Call(state, self._now)
        state.in_flight += 1
        if call.is_trial:
            state.trials, state.tried_at = state.trials + 1, self._now()
        self._changed(backend.id, state)
        return call

    def _end(self, backend: Backend, call: Call) -> None:
        state = call.state
        state.in_flight -= 1
        state.trials -= call.is_trial
        self._changed(backend.id, state)

    def mark_ready(self, backend: Backend, ready: bool) -> None:
        """What a probe found. One that comes back starts with a closed circuit."""
        if not self._is_member(backend):
            return
        state = self._states[backend.id]
        if ready and not state.ready:
            state.close_circuit()
        state.ready = ready
        self._changed(backend.id, state)

    def mark_report(self, backend: Backend, report: EngineReport) -> None:
        """Take a backend's report of its queue and cache. It counts until the next report, plus the calls that we
        made since."""
        if self._is_member(backend):
            state = self._states[backend.id]
            state.report, state.in_flight_at_report = report, state.in_flight
            self._changed(backend.id, state)

    def report(self, backend_id: str) -> EngineReport | None:
        """The backend's latest report."""
        state = self._states.get(backend_id)
        return None if state is None else state.report

    def mark_figures(self, backend: Backend, figures: EngineFigures) -> None:
        """Store what a backend reports of its speed and its cards. It changes no choice of a backend."""
        if self._is_member(backend):
            self._states[backend.id].figures.note(self._now(), figures)

    def rates(self, backend_id: str) -> EngineRates | None:
        """How fast the backend is and what its cards do, by its latest words; None where it said nothing lately."""
        state = self._states.get(backend_id)
        return None if state is None else state.figures.rates(self._now())

    def _is_member(self, backend: Backend) -> bool:
        known = self._backends.get(backend.id)
        return known is backend or known == backend
