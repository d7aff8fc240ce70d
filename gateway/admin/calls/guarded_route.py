"""A route that authenticates and authorises the caller before it reads the body.

FastAPI parses the body before it evaluates dependencies. An unauthenticated caller would then get errors about fields,
and could make the gateway read megabytes.
"""

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool

from gateway.admin.calls.access import Guard, context_of


class GuardedRoute(APIRoute):
    """A route that evaluates the guards among its dependencies first."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        answer = self.unguarded()
        guards = [each.call for each in self.dependant.dependencies if isinstance(each.call, Guard)]

        async def guarded(request: Request) -> Response:
            context = context_of(request)
            run = context.provider_pool.run if context.needs_provider(request) else run_in_threadpool
            request.state.admitted = {guard: await run(guard.admit, request) for guard in guards}
            return await answer(request)

        return guarded

    def unguarded(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler for authorised calls."""
        return super().get_route_handler()
