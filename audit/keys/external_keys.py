"""External keys: a tenant's own master key in its Vault or HSM, which wraps that tenant's key.

An unwrapped key is cached for KNOWN_S seconds from the time of the request and refreshed in the meantime. After a
tenant withdraws its key, no process can read the tenant's data after KNOWN_S; a refusal takes effect at once. The same
applies if the key's holder does not respond.

Each request runs in its own thread, one at a time per owner, and after a failure none is sent for PAUSE_S. A caller
waits for at most WAIT_S, or FAILED_WAIT_S after a failure, and at most MAX_WAITING callers wait per owner. The thread
that writes the record for all tenants waits for BRIEF_S (`brief_waits`). One tenant's key therefore does not block
another tenant.
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
"""Age in seconds after which a key in use is refreshed in the background."""
PAUSE_S = 2.0
WAIT_S = 15.0
BRIEF_S = 0.02
FAILED_WAIT_S = 0.25
MAX_WAITING = 3

_wait_s: ContextVar[float] = ContextVar("wait_s", default=WAIT_S)


@contextmanager
def brief_waits() -> Iterator[None]:
    """Limit waits to BRIEF_S in work for many tenants, so that no tenant's key blocks it."""
    before = _wait_s.set(BRIEF_S)
    try:
        yield
    finally:
        _wait_s.reset(before)


class ExternalMaster:
    """A tenant's `Master` under its configured name, which is the provider in wrapped keys.

    It is opened at its first use, so that the start of a gateway does not wait for it.
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
        """Call `ask` with the master. Raises KeyRefused if the key is missing or its use is refused, KeyProviderError
        if its holder does not respond."""
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
    """Cache entry of an owner: stored content, keys unwrapped from it by generation, and time of the request."""

    content: bytes
    opened: dict[int, bytes] | None = None
    asked: float = 0.0
    failure: KeyProviderError | None = None
    failed: float = 0.0
    asking: "Future[dict[int, bytes]] | None" = None
    waiting: int = 0


Opens = Callable[[], dict[int, bytes]]


class ExternalKeys:
    """The tenants' own master keys by name, and a cache of the keys that they unwrapped. Thread-safe."""

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
        """Return the master of that name. Raises KeyProviderError if no such key is configured."""
        if name not in self._masters:
            raise KeyProviderError(
                f"no external key {name} is configured; set secrets.external.{name} as on the host that it was given on"
            )
        return self._masters[name]

    def opened(self, owner: str, content: bytes, opens: Opens) -> dict[int, bytes]:
        """Return the owner's keys by generation, as returned by `opens` at most KNOWN_S ago for this `content`.

        Raises the errors of `opens`: KeyLost, KeyProviderError.
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
        """Whether the owner's keys are cached and not about to expire."""
        with self._lock:
            known = self._known.get(owner)
            return known is not None and self._fresh(known) is not None and self._now() - known.asked < AGAIN_S

    def _fresh(self, known: _Known) -> dict[int, bytes] | None:
        if known.opened is not None and self._now() - known.asked >= KNOWN_S:
            known.opened = None
        return known.opened

    def _asking(self, owner: str, known: _Known, opens: Opens) -> "Future[dict[int, bytes]]":
        """Start a request unless one is running. The caller holds the lock."""
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
        """Remove expired keys from memory even if they are not requested again."""
        with self._lock:
            if self._fresh(known) is None and known.asking is None and self._known.get(owner) is known:
                del self._known[owner]


def _again(error: KeyProviderError) -> KeyProviderError:
    """Return a copy of the error for another caller."""
    return KeyRefused(str(error)) if isinstance(error, KeyRefused) else KeyProviderError(str(error))
