"""Tenants, keys, policies and backends in memory, so that no request waits for the database.

The directory holds an immutable snapshot of the control store. A thread reads the store's configuration epoch four
times a second; when it changed, it reads the rows that changed since and replaces the snapshot. So a revoked key stops
working in every process within a second, and at once where the database sends notifications. If the epoch could not be
read for five seconds, no call is authenticated (fail closed).

Once a minute the thread writes back which keys were used, and their hashes under a newer pepper.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from ipaddress import IPv4Address, IPv6Address
from types import TracebackType
from typing import Self

from gateway.database.database import Database
from gateway.database.epoch import read_epoch
from gateway.database.listener import EpochListener
from gateway.identity.keys import ApiKey, KeyElsewhere, KeyExpired, KeyHasher, KeyRevoked, KeyUnknown, parse_key
from gateway.identity.machines import Machine
from gateway.identity.principal import PolicyInForce, Principal
from gateway.limits.bucket import Budget
from gateway.limits.effective import binding
from gateway.limits.limiter import Counter, Limits
from gateway.records.adapters import AdapterRecord
from gateway.records.control import UNBOUNDED, BackendRecord, ProjectRecord, Scopes
from gateway.records.prices import Price, PriceBook
from gateway.store.adapters import AdaptersByProject, merged_adapters
from gateway.store.changes import Changes, KeyEntry, PolicyText, read_changes
from gateway.store.lookup import OPERATOR, TENANT_SCOPE
from gateway.store.model_names import NamesByProject, merged
from gateway.store.oversight import Place, StopRecord
from gateway.store.uses import Rehash, write_rehashes, write_uses
from regions.fleet.deployment import Deployment

log = logging.getLogger(__name__)

POLL_INTERVAL_S = 0.25
STALE_AFTER_S = 5.0
FORCED_CHECK_INTERVAL_S = 0.1
WRITE_BACK_INTERVAL_S = 60.0
MAX_MACHINES = 4096
_NO_DIGEST = bytes(32)

Address = IPv4Address | IPv6Address

CompilePolicy = Callable[[str, str, str | None, str | None], PolicyInForce]
"""(tenant, its document, a project's or None, the operator's or None) -> the compiled policy; raises PolicyError."""


class DirectoryStale(Exception):
    """The control store could not be read for too long: the snapshot may be out of date."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The control store as of one epoch. Principals and policies are made on first use, then cached."""

    epoch: int = 0
    tenants: Mapping[str, bool] = field(default_factory=dict)
    projects: Mapping[tuple[str, str], ProjectRecord] = field(default_factory=dict)
    keys: Mapping[str, KeyEntry] = field(default_factory=dict)
    policies: Mapping[tuple[str, str], PolicyText] = field(default_factory=dict)
    backends: Mapping[str, BackendRecord] = field(default_factory=dict)
    limits: Mapping[tuple[str, str, str], Limits] = field(default_factory=dict)
    prices: Mapping[tuple[str, int], Price] = field(default_factory=dict)
    stops: Mapping[Place, StopRecord] = field(default_factory=dict)
    deployments: Mapping[tuple[str, str], Deployment | None] = field(default_factory=dict)
    model_names: NamesByProject = field(default_factory=dict)
    adapters: AdaptersByProject = field(default_factory=dict)
    principals: dict[str, Principal] = field(default_factory=dict)
    machines: dict[Machine, Principal] = field(default_factory=dict)
    mark: object = field(default_factory=object)
    """Its identity: an epoch alone can repeat after a backup was restored."""

    def after(self, changes: Changes) -> "Snapshot":
        return Snapshot(
            changes.epoch,
            {**self.tenants, **changes.tenants},
            {**self.projects, **changes.projects},
            {**self.keys, **changes.keys},
            {**self.policies, **changes.policies},
            {**self.backends, **changes.backends},
            {**self.limits, **changes.limits},
            {**self.prices, **changes.prices},
            {**self.stops, **changes.stops},
            {**self.deployments, **changes.deployments},
            merged(self.model_names, changes.model_names),
            merged_adapters(self.adapters, changes.adapters),
        )

    def is_living(self, tenant: str) -> bool:
        return self.tenants.get(tenant) is False


class Directory:
    """Use as ``async with Directory(...) as directory``: entering reads the store, leaving stops the reading.

    `prices`: those of the configuration. `on_change` is called in the event loop after each new snapshot, the first
    included. Entering raises DatabaseUnavailable if the store cannot be read at all.
    """

    def __init__(
        self,
        database: Database,
        *,
        cell: str,
        hasher: KeyHasher,
        compile_policy: CompilePolicy,
        on_change: Callable[["Directory"], None] = lambda directory: None,
        monotonic: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        prices: Iterable[Price] = (),
    ) -> None:
        self._database = database
        self._cell = cell
        self._hasher = hasher
        self._compile = compile_policy
        self._on_change = on_change
        self._monotonic = monotonic
        self._now = now
        self._snapshot = Snapshot()
        self._configured_prices = tuple(prices)
        self._prices = PriceBook(self._configured_prices)
        self._used: set[str] = set()
        self._rehashes: dict[str, Rehash] = {}
        self._written_at = monotonic()
        self._in_force: dict[tuple[str, str, str | None, str | None], PolicyInForce | str] = {}
        self._read_at = self._tried_at = float("-inf")
        self._failed = False  # the last read of the store
        self._checking = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="directory")
        self._polling: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self._listener: EpochListener | None = None

    async def __aenter__(self) -> Self:
        await self._check()
        loop = asyncio.get_running_loop()

        def hear() -> None:
            loop.call_soon_threadsafe(self._news.set)

        self._listener = EpochListener(self._database, self._cell, hear)
        self._listener.start()
        self._polling = asyncio.create_task(self._poll(), name="directory")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._polling is not None:
            self._polling.cancel()
            with suppress(asyncio.CancelledError):
                await self._polling
        if self._listener is not None:
            await asyncio.to_thread(self._listener.close)
        await self._write_back_quietly()
        self._thread.shutdown()

    @property
    def epoch(self) -> int:
        """Epoch of the snapshot in use."""
        return self._snapshot.epoch

    def check_fresh(self) -> None:
        """Raises DirectoryStale when the store was last read too long ago."""
        age = self._monotonic() - self._read_at
        if age > STALE_AFTER_S:
            raise DirectoryStale(f"the control store could not be read for {age:.0f} s; check the control database")

    async def authenticate(self, token: str, address: Address | None = None) -> Principal:
        """The principal of the API key `token`, for a call from `address`.

        For an unknown key the store is read once more, within 0.1 s. The same for every call if the snapshot is stale
        because this process was suspended. Raises a KeyRefused, or DirectoryStale.
        """
        key = parse_key(token)
        try:
            return self.principal(key, address)
        except KeyUnknown:
            await self._look_again()
        except DirectoryStale:
            await self._catch_up()
        return self.principal(key, address)

    async def authenticate_machine(self, machine: Machine) -> Principal:
        """The principal of a machine whose token the identity provider signed. Raises as `machine`."""
        try:
            return self.machine(machine)
        except DirectoryStale:
            await self._catch_up()
        return self.machine(machine)

    async def authenticate_stored(self, key_id: str) -> Principal:
        """The principal of a key for work that was handed over with it, such as a line of a batch: its secret and
        address were checked then. Raises as `stored`."""
        try:
            return self.stored(key_id)
        except DirectoryStale:
            await self._catch_up()
        return self.stored(key_id)

    def stored(self, key_id: str) -> Principal:
        """The same from memory. Raises KeyUnknown, KeyRevoked, KeyExpired, or DirectoryStale."""
        self.check_fresh()
        entry = self._snapshot.keys.get(key_id)
        if entry is None:
            raise KeyUnknown("the API key is not known; create a new one with `domicile key create`")
        return self._of_entry(key_id, entry)

    def principal(self, key: ApiKey, address: Address | None = None) -> Principal:
        """The principal of `key`, from memory.

        Raises KeyUnknown, KeyRevoked, KeyExpired, KeyElsewhere (also where the key asks for certain addresses and none
        is known), or DirectoryStale.
        """
        self.check_fresh()
        snapshot, hasher = self._snapshot, self._hasher
        entry = snapshot.keys.get(key.id)
        matches = hasher.matches(key, _NO_DIGEST) if entry is None else hasher.matches(key, entry.digest, entry.pepper)
        if entry is None or not matches:
            raise KeyUnknown(
                "the API key is not known; send a key of this installation, as created with `domicile key create`"
            )
        principal = self._of_entry(key.id, entry)
        if not entry.scopes.allows_address(address):
            said = "the API key is not for calls from this address"
            raise KeyElsewhere(said, key_id=key.id, tenant=entry.tenant)
        self._used.add(key.id)
        if entry.pepper < hasher.generation and key.id not in self._rehashes:
            self._rehashes[key.id] = Rehash(hasher.digest(key), hasher.generation)
        return principal

    def _of_entry(self, key_id: str, entry: KeyEntry) -> Principal:
        """Raises KeyRevoked, KeyExpired."""
        snapshot = self._snapshot
        project = snapshot.projects.get((entry.tenant, entry.project))
        revoked = entry.revoked or not snapshot.is_living(entry.tenant) or project is None or project.revoked_at
        if project is None or revoked:
            raise KeyRevoked(
                "the API key was revoked; create a new one with `domicile key create`",
                key_id=key_id,
                tenant=entry.tenant,
            )
        if entry.expires_at is not None and entry.expires_at <= self._now():
            expired = f"the API key expired on {entry.expires_at:%Y-%m-%d %H:%M} UTC"
            raise KeyExpired(expired, key_id=key_id, tenant=entry.tenant)
        if (known := snapshot.principals.get(key_id)) is not None:
            return known
        principal = self._principal(snapshot, key_id, project, entry.scopes, entry.expires_at)
        snapshot.principals[key_id] = principal
        return principal

    def machine(self, machine: Machine) -> Principal:
        """The principal that a machine of the identity provider is in its project, from memory.

        Raises KeyRevoked, also where there is no such project, or DirectoryStale.
        """
        self.check_fresh()
        snapshot = self._snapshot
        project = snapshot.projects.get((machine.tenant, machine.project))
        if project is None or project.revoked_at or not snapshot.is_living(machine.tenant):
            raise KeyRevoked(
                "the project that the token is for is not there; correct oidc.projects, or create the project"
            )
        if (known := snapshot.machines.get(machine)) is not None:
            return known
        if len(snapshot.machines) >= MAX_MACHINES:
            snapshot.machines.clear()
        ends = datetime.fromtimestamp(machine.expires_at, UTC)
        principal = self._principal(snapshot, machine.name, project, UNBOUNDED, ends)
        snapshot.machines[machine] = principal
        return principal

    def is_current(self, principal: Principal) -> bool:
        """Whether `principal` is still valid: no configuration changed since it was made, its key or token has not
        expired, and the control store was read recently. Costs no look-up."""
        if principal.as_of is not self._snapshot.mark or self._monotonic() - self._read_at > STALE_AFTER_S:
            return False
        return principal.expires_at is None or principal.expires_at > self._now()

    def origins(self) -> frozenset[str]:
        """Origins of web pages whose scripts may call for some project that is not revoked."""
        snapshot = self._snapshot
        living = (each for each in snapshot.projects.values() if each.origins and each.revoked_at is None)
        return frozenset(origin for each in living if snapshot.is_living(each.tenant) for origin in each.origins)

    def backends(self) -> tuple[BackendRecord, ...]:
        """Every backend that may get requests: neither it nor its tenant is revoked."""
        snapshot = self._snapshot
        return tuple(
            backend
            for backend in snapshot.backends.values()
            if backend.revoked_at is None and snapshot.is_living(backend.tenant)
        )

    def stops(self) -> Iterable[StopRecord]:
        """All stops, including those that were resumed."""
        return self._snapshot.stops.values()

    def adapters(self) -> list[AdapterRecord]:
        """Adapters of all projects of the cell."""
        return [record for named in self._snapshot.adapters.values() for record in named.values()]

    def deployments(self) -> tuple[Deployment, ...]:
        """Deployments that are not deleted, of tenants that are not revoked."""
        found = self._snapshot.deployments.values()
        return tuple(each for each in found if each is not None and self._snapshot.is_living(each.tenant))

    def budgets(self) -> list[Counter]:
        """Counters of the budgets of living tenants and projects, those of their policies included. May be
        called in any thread: policies that no call has used yet are compiled."""
        snapshot = self._snapshot
        found: dict[str, Counter] = {}
        for (tenant, project), record in snapshot.projects.items():
            if record.revoked_at is not None or not snapshot.is_living(tenant):
                continue
            in_force = self._policy(snapshot, tenant, project)
            limits = None if isinstance(in_force, str) else in_force.policy.limits
            for counter in binding(tenant, project, "", snapshot.limits, limits):
                of_key = counter.bucket.startswith(f"{tenant}/{project}/")
                if isinstance(counter.quota, Budget) and not of_key:
                    found[counter.bucket] = counter
        return list(found.values())

    @property
    def prices(self) -> PriceBook:
        """All versions of prices, including those of the configuration file."""
        return self._prices

    def _principal(
        self, snapshot: Snapshot, key_id: str, project: ProjectRecord, scopes: Scopes, expires_at: datetime | None
    ) -> Principal:
        in_force = self._policy(snapshot, project.tenant, project.id)
        return Principal(
            tenant=project.tenant,
            project=project.id,
            key_id=key_id,
            purpose=project.purpose,
            legal_basis=project.legal_basis,
            data_classes=project.data_classes,
            risk_class=project.risk_class,
            ai_system_id=project.ai_system_id,
            scopes=scopes,
            expires_at=expires_at,
            in_force=None if isinstance(in_force, str) else in_force,
            policy_error=in_force if isinstance(in_force, str) else None,
            counters=binding(
                project.tenant,
                project.id,
                key_id,
                snapshot.limits,
                None if isinstance(in_force, str) else in_force.policy.limits,
            ),
            names=snapshot.model_names.get((project.tenant, project.id), {}),
            adapters={
                record.called: record for record in snapshot.adapters.get((project.tenant, project.id), {}).values()
            },
            origins=project.origins,
            as_of=snapshot.mark,
        )

    def _policy(self, snapshot: Snapshot, tenant: str, project: str) -> PolicyInForce | str:
        """The policy in force, or the reason why there is none; there is no default."""
        own = snapshot.policies.get((tenant, TENANT_SCOPE))
        if own is None:
            return f"tenant {tenant} has no active policy"
        tighter = snapshot.policies.get((tenant, project))
        operator = snapshot.policies.get((OPERATOR, TENANT_SCOPE))
        version = (
            tenant, own.sha256, tighter.sha256 if tighter else None, operator.sha256 if operator else None
        )  # fmt: skip
        if (known := self._in_force.get(version)) is not None:
            return known
        result: PolicyInForce | str
        try:
            result = self._compile(
                tenant, own.document, tighter.document if tighter else None, operator.document if operator else None
            )
        except Exception as error:  # of any kind: without a policy no request is processed
            result = f"the policy of {tenant}/{project} does not compile: {error}"
            log.error("%s", result)
        self._in_force[version] = result
        return result

    async def _poll(self) -> None:
        while True:
            with suppress(TimeoutError):  # not wait_for: before 3.12 it swallows the end that comes with the news
                async with asyncio.timeout(POLL_INTERVAL_S):
                    await self._news.wait()
            self._news.clear()
            async with self._checking:
                await self._check_quietly()
            if self._monotonic() - self._written_at >= WRITE_BACK_INTERVAL_S:
                await self._write_back_quietly()

    async def write_back(self) -> None:
        """Write uses and new hashes of keys to the store. If that fails they are kept for the next time."""
        used, self._used = self._used, set()
        rehashes, self._rehashes = self._rehashes, {}
        self._written_at = self._monotonic()
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._write, used, rehashes)
        except BaseException:
            self._used |= used
            self._rehashes = rehashes | self._rehashes
            raise

    async def _write_back_quietly(self) -> None:
        try:
            await self.write_back()
        except Exception as error:  # of any kind: no request depends on it
            log.warning("the use of keys cannot be written: %s; check the control database, it is tried again", error)

    def _write(self, used: set[str], rehashes: Mapping[str, Rehash]) -> None:
        """In the thread."""
        write_uses(self._database, used, self._now())
        write_rehashes(self._database, self._cell, rehashes)

    async def _look_again(self) -> None:
        """One check serves all calls that wait for it, so a flood of unknown keys costs ten reads a second."""
        asked = self._monotonic()
        async with self._checking:
            if self._tried_at <= asked:
                await asyncio.sleep(max(0.0, self._tried_at + FORCED_CHECK_INTERVAL_S - asked))
                await self._check_quietly()

    async def _catch_up(self) -> None:
        """After this process was suspended: wait for one read of the store, or for the one in progress. If the last
        read failed, do not wait: then the store does not answer."""
        with suppress(TimeoutError):
            async with asyncio.timeout(STALE_AFTER_S), self._checking:
                if not self._failed and self._monotonic() - self._read_at > STALE_AFTER_S:
                    await self._check_quietly()

    def set_prices(self, prices: Iterable[Price]) -> None:
        """Those of the settings, from now on; prices of the control database go before them."""
        self._configured_prices = tuple(prices)
        self._prices = PriceBook([*self._configured_prices, *self._snapshot.prices.values()])

    async def _check_quietly(self) -> None:
        try:
            await self._check()
        except Exception as error:  # of any kind: the poll must go on, and staleness does the rest
            self._failed = True
            log.warning("the control store cannot be read: %s; check the control database, it is tried again", error)

    async def _check(self) -> None:
        started = self._tried_at = self._monotonic()
        new = await asyncio.get_running_loop().run_in_executor(self._thread, self._read)
        self._read_at, self._failed = started, False
        if new is not None:
            self._snapshot = new
            self._prices = PriceBook([*self._configured_prices, *new.prices.values()])
            self._forget_old_policies()
            self._on_change(self)

    def _read(self) -> Snapshot | None:
        """In the thread: the next snapshot, or None if nothing changed."""
        current = self._snapshot
        self._hasher = self._hasher.refreshed()
        with self._database.read() as session:
            epoch = read_epoch(session, self._cell)
            if epoch == current.epoch:
                return None
            if epoch < current.epoch:  # a backup was restored
                current = Snapshot()
            changes = read_changes(session, self._cell, current.epoch)
        newest = max((entry.pepper for entry in changes.keys.values()), default=0)
        if newest > self._hasher.generation:
            self._hasher = self._hasher.advanced(newest)
        elif not all(self._hasher.knows(entry.pepper) for entry in changes.keys.values()):
            self._hasher = self._hasher.reopened()
        if not all(self._hasher.knows(entry.pepper) for entry in changes.keys.values() if not entry.revoked):
            log.error("some keys are hashed under a pepper that is not on this machine; they do not work here")
        return current.after(changes)

    def _forget_old_policies(self) -> None:
        active = {None} | {text.sha256 for text in self._snapshot.policies.values()}
        self._in_force = {version: known for version, known in dict(self._in_force).items() if active >= {*version[1:]}}
