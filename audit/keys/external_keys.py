"""Keys that are not the installation's: a tenant's own key in its own Vault or HSM, above that tenant's key.

What such a key opened is held for KNOWN_S seconds from the moment it was asked, and asked for again meanwhile. So when
the tenant takes its key away, nothing of the tenant's can be read any more after KNOWN_S, in any process; a refusal
takes effect at once. Where the key's holder does not answer, the same happens: out of reach is not readable.

Each question runs in a thread of its own, one at a time for each owner, and after a failure none is asked for PAUSE_S.
Who asks waits for at most WAIT_S, FAILED_WAIT_S after a failure, and only MAX_WAITING do for one owner; the thread that
writes the record for all tenants waits for BRIEF_S (`brief_waits`). So one tenant's key holds up no other tenant.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeVar

from audit.errors import KeyLost, KeyProviderError, KeyRefused
from audit.keys.master import Master, MasterState, origin_of

T = TypeVar("T")

KNOWN_S = 20.0
AGAIN_S = 8.0
"""Age from which what is used is asked for again, in the background."""
PAUSE_S = 2.0
WAIT_S = 15.0
BRIEF_S = 0.02
FAILED_WAIT_S = 0.25
MAX_WAITING = 3

_wait_s: ContextVar[float] = ContextVar("wait_s", default=WAIT_S)


@contextmanager
def brief_waits() -> Iterator[None]:
    """For work on behalf of many tenants: no one tenant's key holds it up."""
    before = _wait_s.set(BRIEF_S)
    try:
        yield
    finally:
        _wait_s.reset(before)


class ExternalMaster:
    """A `Master` of a tenant under a name of ours, which is the provider in what it wraps.

    It is opened when it is first used, so that no start of a gateway waits for it.
    """

    def __init__(self, name: str, open_master: Callable[[], Master]) -> None:
        self.provider = name
        self._open = open_master
        self._opened: Master | None = None
        self._lock = threading.Lock()

    @property
    def _master(self) -> Master:
        with self._lock:
            if self._opened is None:
                self._opened = self._open()
            return self._opened

    def wrap(self, context: str, key: bytes) -> bytes:
        return self._ours(self._asked(lambda master: master.wrap(context, key)))

    def unwrap(self, context: str, wrapped: bytes) -> bytes:
        return self._asked(lambda master: master.unwrap(context, self._theirs(master, wrapped)))

    def rewrap(self, context: str, wrapped: bytes) -> bytes:
        return self._ours(self._asked(lambda master: master.rewrap(context, self._theirs(master, wrapped))))

    def state(self) -> MasterState:
        state = self._asked(lambda master: master.state())
        return MasterState(self.provider, state.place, state.versions)

    def rotate(self) -> int:
        raise KeyProviderError(f"the key {self.provider} is its tenant's; it is rotated there, then run secrets rewrap")

    def retire(self, below: int) -> None:
        raise KeyProviderError(f"the key {self.provider} is its tenant's; versions of it are destroyed there")

    def _asked(self, ask: Callable[[Master], T]) -> T:
        """Raises KeyRefused where the key is gone or may not be used, KeyProviderError where nobody answers."""
        try:
            return ask(self._master)
        except KeyLost as error:
            raise KeyRefused(f"the external key {self.provider}: {error}; have its holder put it back") from error

    def _ours(self, wrapped: bytes) -> bytes:
        return self.provider.encode() + wrapped[wrapped.index(b":") :]

    def _theirs(self, master: Master, wrapped: bytes) -> bytes:
        name, _ = origin_of(wrapped)
        if name != self.provider:
            raise KeyProviderError(f"a key was wrapped by {name}, not by {self.provider}; name {name} for its tenant")
        return master.provider.encode() + wrapped[wrapped.index(b":") :]


@dataclass(slots=True)
class _Known:
    """Of one owner: what is kept of it, the keys that opened from that by generation, when this was asked."""

    content: bytes
    opened: dict[int, bytes] | None = None
    asked: float = 0.0
    failure: KeyProviderError | None = None
    failed: float = 0.0
    asking: "Future[dict[int, bytes]] | None" = None
    waiting: int = 0


Opens = Callable[[], dict[int, bytes]]


class ExternalKeys:
    """The tenants' own keys, by name, and what they opened lately. Any thread may use it."""

    def __init__(self, masters: Mapping[str, Master], now: Callable[[], float] = time.monotonic) -> None:
        self._masters = dict(masters)
        self._now = now
        self._lock = threading.Lock()
        self._known: dict[str, _Known] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._masters

    @property
    def names(self) -> list[str]:
        return sorted(self._masters)

    def named(self, name: str) -> Master:
        """Raises KeyProviderError where no such key is configured."""
        if name not in self._masters:
            raise KeyProviderError(
                f"no external key {name} is configured; set secrets.external.{name} as on the host that it was given on"
            )
        return self._masters[name]

    def opened(self, owner: str, content: bytes, opens: Opens) -> dict[int, bytes]:
        """Return the owner's keys by generation, as `opens` returned them at most KNOWN_S ago for this `content`.

        Raises what `opens` raises: KeyLost, KeyProviderError.
        """
        with self._lock:
            known = self._known.get(owner)
            if known is None or known.content != content:
                known = self._known[owner] = _Known(content)
            now, ready = self._now(), self._fresh(known)
            if ready is not None and now - known.asked < AGAIN_S:
                return ready
            paused = known.failure is not None and now - known.failed < PAUSE_S
            if paused and ready is None and known.failure is not None:
                raise _again(known.failure)
            asking = known.asking if paused else self._asking(owner, known, opens)
            if ready is not None:
                return ready
            wait_s = _wait_s.get() if known.failure is None else min(_wait_s.get(), FAILED_WAIT_S)
            if known.waiting >= MAX_WAITING:
                wait_s = 0.0
            known.waiting += 1
        return self._awaited(owner, known, asking, wait_s)

    def _awaited(
        self, owner: str, known: _Known, asking: "Future[dict[int, bytes]] | None", wait_s: float
    ) -> dict[int, bytes]:
        try:
            if asking is not None:
                return asking.result(wait_s)
        except NotYet:
            pass
        finally:
            with self._lock:
                known.waiting -= 1
        raise KeyProviderError(
            f"the holder of the key of tenant {owner} has not answered yet; try again, and see that it is reachable"
        )

    def forget(self, owner: str) -> None:
        with self._lock:
            self._known.pop(owner, None)

    def is_ready(self, owner: str) -> bool:
        """Whether the owner's keys can be used now without waiting, and for a while."""
        with self._lock:
            known = self._known.get(owner)
            return known is not None and self._fresh(known) is not None and self._now() - known.asked < AGAIN_S

    def _fresh(self, known: _Known) -> dict[int, bytes] | None:
        if known.opened is not None and self._now() - known.asked >= KNOWN_S:
            known.opened = None
        return known.opened

    def _asking(self, owner: str, known: _Known, opens: Opens) -> "Future[dict[int, bytes]]":
        """Ask, unless that is under way. With the lock."""
        if known.asking is None:
            known.asking = Future()
            ask = threading.Thread(target=self._ask, args=(owner, known, opens, known.asking), daemon=True)
            ask.name = f"external key of {owner}"
            ask.start()
        return known.asking

    def _ask(self, owner: str, known: _Known, opens: Opens, answer: "Future[dict[int, bytes]]") -> None:
        asked = self._now()
        try:
            opened = opens()
        except KeyProviderError as error:
            with self._lock:
                known.failure, known.failed, known.asking = error, self._now(), None
                if isinstance(error, KeyLost | KeyRefused):
                    known.opened = None
            answer.set_exception(error)
        except BaseException as error:
            with self._lock:
                known.asking, known.opened = None, None
            answer.set_exception(error)
        else:
            with self._lock:
                known.opened, known.asked, known.failure, known.asking = opened, asked, None, None
            answer.set_result(opened)
            forget = threading.Timer(max(0.0, asked + KNOWN_S - self._now()), self._expire, (owner, known))
            forget.daemon = True
            forget.start()

    def _expire(self, owner: str, known: _Known) -> None:
        """Take what has expired out of memory, though nobody asks for it."""
        with self._lock:
            if self._fresh(known) is None and known.asking is None and self._known.get(owner) is known:
                del self._known[owner]


def _again(error: KeyProviderError) -> KeyProviderError:
    """The same refusal for another caller."""
    return KeyRefused(str(error)) if isinstance(error, KeyRefused) else KeyProviderError(str(error))
