"""Rate-limited search for the recorded answers that a text comes from, by fingerprints. Every search is recorded."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import closing

from audit.events.privacy import AnswerSearched
from audit.log.found_answers import AnswerSearch, find_answers
from audit.storage.store import Reader
from gateway.store.marks import AnswerSalts
from gateway.store.text_tests import TextTests

Record = Callable[[AnswerSearched], Awaitable[object]]


class AnswerFinder:
    """Search in one log. `open_reader`: opens a reader of the log. `bound`: rate limit; None for a command, whose
    caller has the keys anyway."""

    def __init__(
        self, salts: AnswerSalts, open_reader: Callable[[], Reader], record: Record, bound: TextTests | None = None
    ) -> None:
        self._salts = salts
        self._open_reader = open_reader
        self._record = record
        self._bound = bound

    async def __call__(
        self, tenant: str, text: str, reason: str, actor: str, *, since: str | None = None, until: str | None = None
    ) -> AnswerSearch:
        """Search, and record the search before returning its result. `since`, `until`: RFC 3339 UTC or a prefix of it.
        Raises TooManyTests, and the errors of salts, log and record."""
        if self._bound is not None:
            await asyncio.to_thread(self._bound.take, tenant)
        found = await asyncio.to_thread(self._found, tenant, text, since, until)
        event = AnswerSearched(
            tenant=tenant,
            actor=actor,
            reason=reason,
            verdict=found.verdict,
            letters=found.letters,
            compared=found.compared,
            matches=found.matches,
            first=found.first or None,
            end=found.end,
        )
        await self._record(event)
        return found

    def _found(self, tenant: str, text: str, since: str | None, until: str | None) -> AnswerSearch:
        salts = {salt.period: salt.key for salt in self._salts.all(tenant)}
        with closing(self._open_reader()) as reader:
            return find_answers(reader, tenant, text, salts, since=since, until=until)
