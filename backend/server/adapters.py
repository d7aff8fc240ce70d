"""LoRA adapters over HTTP, for the backend's owner: over the same mutual TLS as requests, from the one peer admitted.

    GET    /adapters          what is loaded
    POST   /adapters          {"name": …, "path": …}: load the folder of that path below --adapters
    POST   /adapters/unload   {"name": …}: unload it, and zero its weights; 409 while sequences run with it

A request names one behind the model: `model: base:adapter`.
"""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from backend.engine.loaded_adapter import LoadedAdapter, resolved
from backend.errors import AdapterUnknown, InvalidRequest, ModelUnknown
from backend.process.replicas import Engines
from backend.wire import (
    ADAPTER_SEPARATOR,
    ADAPTERS_PATH,
    UNLOAD_PATH,
    Adapter,
    AdapterList,
    AdapterNamed,
    AdapterRequest,
)

MAX_BODY_BYTES = 8192
A = TypeVar("A", AdapterRequest, AdapterNamed)
Endpoint = Callable[[Request], Awaitable[Response]]


class AdapterApi:
    """guard: makes an endpoint answer errors."""

    def __init__(self, engine: Engines, served_name: str, guard: Callable[[Endpoint], Endpoint]) -> None:
        self._engine = engine
        self._served_name = served_name
        self._guard = guard

    def routes(self) -> list[Route]:
        return [
            Route(ADAPTERS_PATH, self._guard(self.show), methods=["GET"]),
            Route(ADAPTERS_PATH, self._guard(self.load), methods=["POST"]),
            Route(UNLOAD_PATH, self._guard(self.unload), methods=["POST"]),
        ]

    async def show(self, _: Request) -> Response:
        found = [_shown(adapter) for adapter in self._engine.adapters]
        return _json(AdapterList(max_adapters=self._engine.config.max_adapters, data=found))

    async def load(self, request: Request) -> Response:
        asked = await _read(request, AdapterRequest)
        found = await self._engine.load_adapter(
            asked.name, asked.path, asked.project, asked.sha256, timeout_s=self._engine.config.step_timeout_s
        )
        return _json(_shown(found))

    async def unload(self, request: Request) -> Response:
        asked = await _read(request, AdapterNamed)
        timeout_s = self._engine.config.step_timeout_s
        await self._engine.unload_adapter(asked.name, asked.project, timeout_s=timeout_s)
        return await self.show(request)

    def of_model(self, model: str | None, project: str) -> LoadedAdapter | None:
        """The adapter that a request's model names; None: the base. Raises ModelUnknown for any other name, and for
        another project's adapter in the words for one that is not loaded."""
        if model is None or model == self._served_name:
            return None
        base, _, name = model.rpartition(ADAPTER_SEPARATOR)
        if base != self._served_name or not name:
            raise ModelUnknown(
                f"this backend serves {self._served_name!r} only; send this name as model", param="model"
            )
        found = resolved(self._engine.adapters, name, project)
        if found is None:
            raise AdapterUnknown(
                f"no adapter named {name!r} is loaded here; load it, or name another model", param="model"
            )
        return found


def _shown(adapter: LoadedAdapter) -> Adapter:
    return Adapter(
        name=adapter.name,
        path=adapter.path,
        project=adapter.project,
        sha256=adapter.digest,
        rank=adapter.rank,
        bytes=adapter.size,
    )


async def _read(request: Request, kind: type[A]) -> A:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise InvalidRequest(f"the body is larger than {MAX_BODY_BYTES} bytes; send a smaller body")
    try:
        return kind.model_validate_json(bytes(body))
    except ValidationError:
        fields = ", ".join(f'"{name}"' for name in kind.model_fields)
        raise InvalidRequest(
            f"the body is not one that this call takes; send some of {fields}, as docs/api.md says"
        ) from None


def _json(answer: Adapter | AdapterList) -> Response:
    return Response(answer.model_dump_json(), media_type="application/json")
