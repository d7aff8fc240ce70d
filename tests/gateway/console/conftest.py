import re

import httpx2
import pytest_asyncio

from tests.gateway.console.scene import scene, session_of


class Guest:
    """Somebody at the console without a browser: keeps the session, sends forms as its pages hold them."""

    def __init__(self, made, session=None, **headers):
        cookies = {"domicile-session": session} if session else {}
        self.made, self.base = made, made.base
        self.http = httpx2.AsyncClient(base_url=made.base, cookies=cookies, headers=headers, timeout=30, verify=False)

    async def get(self, path):
        return await self.http.get(f"/console{path}")

    async def send(self, path, page=None, headers=None, **fields):
        """POST what the form of `page`, by default the page at `path`, sends, with `fields` filled in."""
        shown = (await self.get(page or path)).text
        hidden = dict(re.findall(r'name="(csrf|once)" value="([^"]+)"', shown))
        return await self.http.post(
            f"/console{path}", data={**hidden, **fields}, headers={"origin": self.base, **(headers or {})}
        )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def made(tmp_path_factory):
    async with scene(tmp_path_factory.mktemp("console")) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def guest(made):
    """Makes guests in a role; closes their connections in the end."""
    guests = []

    def come(tenant=None, role=None, **headers):
        guests.append(Guest(made, session_of(made, tenant, role) if role else None, **headers))
        return guests[-1]

    yield come
    for each in guests:
        await each.http.aclose()
