"""Gateways whose tenants keep content; one for a whole module where its tests do not stand in each other's way."""

import asyncio

import pytest

from tests.fakes.backend import FakeBackend
from tests.gateway.batches.conftest import client, gateway

WAITING = ("queued", "in_progress")
MAIL = "anna.schmidt@example.org"


def echo(body):
    return f"You said {body['messages'][-1]['content']}"


def backends(*tenants, **options):
    asked = {"say": echo, **options}
    return {f"{name}/eu-fr-par/{name}-1": FakeBackend(**asked) for name in tenants or ("acme", "globex")}


async def over(sdk, response, within_s=30):
    async with asyncio.timeout(within_s):
        while (response := await sdk.responses.retrieve(response.id)).status in WAITING:
            await asyncio.sleep(0.05)
    return response


@pytest.fixture
async def kept(tmp_path):
    async with gateway(tmp_path, backends=backends()) as made, client(made) as sdk:
        made.sdk = sdk
        yield made
