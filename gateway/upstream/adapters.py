"""Adapters loaded on Domicile backends. An adapter is loaded before the first call that names it.

The gateway requests the digest that is configured; if a backend has another adapter under the name, that one is
unloaded first. If a backend has no free slot, the adapter that this gateway used least recently there is unloaded,
unless running calls use it.
"""

import asyncio
import json
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

from backend.wire import ADAPTERS_PATH, UNLOAD_PATH
from gateway.errors import BackendUnavailable, GatewayError
from gateway.records.adapters import AdapterRecord
from gateway.upstream.client import Target, Upstream
from gateway.upstream.http1 import ConnectionLost, ProtocolError
from regions.fleet.fleet import Backend

LOAD_TIMEOUT_S = 60.0
_Held = tuple[str, str]  # project, name


class BackendAdapters:
    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._known: dict[str, tuple[Backend | None, OrderedDict[_Held, str]]] = {}  # digests, most recently used last
        self._turns: dict[str, asyncio.Lock] = {}

    async def ensure(self, target: Target, adapter: AdapterRecord, check: Callable[[], None]) -> None:
        """Load the adapter unless the backend has it. Raises BackendUnavailable; the call has then not been sent.

        `check` is called before anything is sent to the backend, which may be minutes later; what it raises ends this.
        """
        if target.backend is None or target.backend.kind != "domicile":
            raise BackendUnavailable("Adapters are loaded by backends of our own only; name the model itself")
        held = self._held(target)
        key = adapter.project, adapter.name
        if held.get(key) != adapter.sha256:
            async with self._turns.setdefault(target.backend_id, asyncio.Lock()):
                if held.get(key) != adapter.sha256:
                    await self._load(_Asked(self._upstream, target, check), adapter, held)
                    held[key] = adapter.sha256
        held.move_to_end(key)

    def forget(self, target: Target, adapter: AdapterRecord) -> None:
        """Note that the backend reported the adapter as missing."""
        self._held(target).pop((adapter.project, adapter.name), None)

    def _held(self, target: Target) -> OrderedDict[_Held, str]:
        """Return the adapters of the current backend process. A restarted process has none."""
        known = self._known.get(target.backend_id)
        if known is None or known[0] is not target.backend:
            known = self._known[target.backend_id] = target.backend, OrderedDict()
        return known[1]

    async def _load(self, backend: "_Asked", adapter: AdapterRecord, held: OrderedDict[_Held, str]) -> None:
        wanted = {"name": adapter.name, "path": adapter.path, "project": adapter.project, "sha256": adapter.sha256}
        status, said = await backend.ask(ADAPTERS_PATH, wanted)
        if status == 409:
            await self._make_room(backend, said.get("error", {}).get("code"), adapter, held)
            status, said = await backend.ask(ADAPTERS_PATH, wanted)
        if status != 200 or said.get("sha256") != adapter.sha256:
            code = said.get("error", {}).get("code")
            raise BackendUnavailable(
                f"The backend could not load the adapter ({code or status}); ask the operator to look at its folder",
                code="adapter_unavailable",
            )

    async def _make_room(
        self, backend: "_Asked", code: Any, adapter: AdapterRecord, held: OrderedDict[_Held, str]
    ) -> None:
        """Unload the adapter that has the name, or else the least recently used adapter that no call uses."""
        if code == "adapter_in_use":
            await self._unload(backend, (adapter.project, adapter.name), held)
            return
        _, listed = await backend.ask(ADAPTERS_PATH, None)
        there = [(str(each.get("project")), str(each.get("name"))) for each in listed.get("data", [])]
        age = {key: number for number, key in enumerate(held)}
        for key in sorted(there, key=lambda key: age.get(key, -1)):
            if await self._unload(backend, key, held):
                return

    async def _unload(self, backend: "_Asked", key: _Held, held: OrderedDict[_Held, str]) -> bool:
        status, _ = await backend.ask(UNLOAD_PATH, {"project": key[0], "name": key[1]})
        if status == 200:
            held.pop(key, None)
        return status == 200


class _Asked(NamedTuple):
    """A backend that is asked about adapters, as long as `check` raises nothing."""

    upstream: Upstream
    target: Target
    check: Callable[[], None]

    async def ask(self, path: str, body: dict[str, str] | None) -> tuple[int, dict[str, Any]]:
        """Return the status and the JSON object of the response. Raises BackendUnavailable, and what `check` raises."""
        sent = None if body is None else json.dumps(body).encode()
        try:
            status, said = await self.upstream.ask(self.target, path, LOAD_TIMEOUT_S, sent, self.check)
            found = json.loads(said or b"{}")
        except (GatewayError, ConnectionLost, ProtocolError, TimeoutError, ValueError) as error:
            raise BackendUnavailable("The backend did not say whether it has the adapter; try again") from error
        return status, found if isinstance(found, dict) else {}
