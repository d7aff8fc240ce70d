"""Webhook delivery: reads new records, checks budgets, and sends due messages with retries.

One gateway of a cell delivers, chosen by a lease. Delivery is at least once: if a gateway dies after sending a message
and before storing that, the message is sent again with the same identifier.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from prometheus_client import CollectorRegistry, Counter
from pydantic_core import to_json

from audit.external_service import Breaker, ExternalService, ExternalUnavailable
from gateway.configuration.settings import BUDGET_EVENTS, Webhook, matches
from gateway.database.leases import Lease
from gateway.store.log_followers.ledger_writer import LogReader
from gateway.store.log_followers.webhooks import Message, WebhookMessages
from gateway.webhooks.destination import reachable
from gateway.webhooks.signature import read_key, signed_headers

log = logging.getLogger("domicile.gateway")

LEASE = "webhooks"
LEASE_S = 30.0
EVERY_S = 1.0
BUDGETS_EVERY_S = 15.0
EXPIRE_EVERY_S = 3600.0
DEADLINE_S = 10.0
"""For one delivery."""
AT_ONCE = 16
AGAIN_AFTER_S = (5.0, 30.0, 120.0, 600.0, 3600.0, 6 * 3600.0, 24 * 3600.0)
"""After each attempt that failed; after one more the message is given up, a day and a third behind its event."""
GONE = 410
"""A receiver says by it that it wants no more of this message (Standard Webhooks)."""
MAX_ANSWER_BYTES = 1 << 16
NEARLY = 0.8
"""The share of a budget from which on it is nearly used, as in the alert."""


class BudgetUse(Protocol):
    """As `gateway.server.monitoring.budgets.BudgetUse`."""

    @property
    def tenant(self) -> str: ...
    @property
    def project(self) -> str: ...
    @property
    def limit(self) -> str: ...
    @property
    def used(self) -> float: ...
    @property
    def capacity(self) -> float: ...
    @property
    def began(self) -> Any: ...
    @property
    def ratio(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Receiver:
    """A configured webhook with its signing key."""

    hook: Webhook
    key: bytes
    service: ExternalService

    @classmethod
    def of(cls, hook: Webhook) -> "Receiver":
        """Raises SecretError, OSError, LoosePermissions."""
        service = ExternalService(
            f"the receiver of webhook {hook.name}",
            deadline_s=DEADLINE_S,
            max_bytes=MAX_ANSWER_BYTES,
            breaker=Breaker(failures=1 << 30),  # attempts are spaced out anyway, and each counts
            may_reach=reachable(hook.networks),
        )
        return cls(hook, read_key(hook.secret_file), service)

    def wants(self, tenant: str, kind: str) -> bool:
        of_tenant = self.hook.tenants is None or tenant in self.hook.tenants
        return of_tenant and any(matches(pattern, kind) for pattern in self.hook.events)

    @property
    def wants_budgets(self) -> bool:
        return any(matches(pattern, kind) for pattern in self.hook.events for kind in BUDGET_EVENTS)


class Webhooks:
    """`open_reader`: a snapshot of the record. `budgets`: the use of all budgets; it blocks, and may raise."""

    def __init__(
        self,
        receivers: Sequence[Receiver],
        messages: WebhookMessages,
        lease: Lease,
        open_reader: Callable[[], LogReader],
        budgets: Callable[[], Iterable[BudgetUse]],
        registry: CollectorRegistry,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._receivers: Mapping[str, Receiver] = {each.hook.name: each for each in receivers}
        self._messages = messages
        self._lease = lease
        self._open_reader = open_reader
        self._budgets = budgets
        self._now = now
        self._looked_at = self._expired_at = float("-inf")
        self._failing = False
        self.deliveries = Counter(
            "domicile_webhook_deliveries", "Attempts to deliver a webhook", ("webhook", "outcome"), registry=registry
        )

    async def run(self) -> None:
        """Run until cancelled. Returns at once if no webhook is configured."""
        while self._receivers:
            try:
                await self.step()
                self._failing = False
            except Exception as error:  # of any kind: nothing else depends on it, and it is tried again
                if not self._failing:
                    log.warning(
                        "webhooks wait: %s: %s; check the control database, it is tried again",
                        type(error).__name__,
                        error,
                    )
                self._failing = True
            await asyncio.sleep(EVERY_S)

    async def step(self) -> int:
        """Read, check and deliver once. Returns the number of attempted deliveries, 0 if another gateway holds the
        lease."""
        if await asyncio.to_thread(self._lease.take) is None:
            return 0
        await asyncio.to_thread(self._collect)
        due = await asyncio.to_thread(self._messages.due, list(self._receivers), self._now(), AT_ONCE)
        await asyncio.gather(*(self._deliver(message) for message in due))
        return len(due)

    def _collect(self) -> None:
        now = self._now()
        for name, receiver in self._receivers.items():
            while self._messages.follow(name, receiver.wants, self._open_reader, now):
                pass
        if now - self._looked_at >= BUDGETS_EVERY_S:
            self._messages.add(self._of_budgets(now), now)
            self._looked_at = now
        if now - self._expired_at >= EXPIRE_EVERY_S:
            self._messages.expire(now)
            self._expired_at = now

    def _of_budgets(self, now: float) -> list[Message]:
        """One message for each budget, step and period, made once by its identifier."""
        if not any(receiver.wants_budgets for receiver in self._receivers.values()):
            return []
        found = []
        for use in self._budgets():
            kind = "budget.used_up" if use.ratio >= 1 else "budget.nearly_used"
            if use.ratio < NEARLY:
                continue
            for name, receiver in self._receivers.items():
                if receiver.wants(use.tenant, kind):
                    message_id = f"{kind}:{use.tenant}:{use.project}:{use.limit}:{use.began.isoformat()}"
                    found.append(Message(name, message_id, _budget_body(kind, use, now)))
        return found

    async def _deliver(self, message: Message) -> None:
        receiver = self._receivers[message.hook]
        body, at = message.body.encode(), int(self._now())
        headers = {
            "content-type": "application/json",
            "user-agent": "domicile-webhook",
            **signed_headers(receiver.key, message.id, at, body),
        }
        try:
            answer = await receiver.service.ask("POST", receiver.hook.url, content=body, headers=headers)
        except ExternalUnavailable as error:
            await self._failed(message, str(error))
            return
        if 200 <= answer.status < 300:
            self.deliveries.labels(message.hook, "delivered").inc()
            await asyncio.to_thread(self._messages.ended, message, "delivered")
        elif answer.status == GONE:
            await self._given_up(message, "it wants no more of this message")
        else:
            await self._failed(message, f"it answered {answer.status}; look at the log of the receiver")

    async def _failed(self, message: Message, because: str) -> None:
        self.deliveries.labels(message.hook, "failed").inc()
        if message.attempts >= len(AGAIN_AFTER_S):
            await self._given_up(message, because)
            return
        if message.attempts == 0:
            log.warning(
                "webhook %s: message %s waits: %s; make the receiver answer 2xx, it is tried again",
                message.hook,
                message.id,
                because,
            )
        await asyncio.to_thread(self._messages.failed, message, self._now() + AGAIN_AFTER_S[message.attempts])

    async def _given_up(self, message: Message, because: str) -> None:
        self.deliveries.labels(message.hook, "given_up").inc()
        log.error(
            "webhook %s: message %s is given up: %s; the record still has the event, make the receiver answer 2xx",
            message.hook,
            message.id,
            because,
        )
        await asyncio.to_thread(self._messages.ended, message, "given_up")


def _budget_body(kind: str, use: BudgetUse, now: float) -> str:
    data = {
        "tenant": use.tenant,
        "project": use.project or None,
        "limit": use.limit,
        "used": round(use.used, 6),
        "budget": use.capacity,
        "since": use.began.isoformat(),
    }
    at = datetime.fromtimestamp(now, UTC).isoformat().replace("+00:00", "Z")
    return to_json({"type": kind, "timestamp": at, "data": data}).decode()
