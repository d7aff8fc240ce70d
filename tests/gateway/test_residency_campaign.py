"""Random policies, failures, retries, redirects and races: no byte goes to a backend that is forbidden at that moment.

Over the whole gateway on loopback. The oracle is this file's own reading of the policy, not the product's. It is asked
when a request is written to a connection, in the same step of the event loop, so that a change of policy falls either
before that or after it: there is no interval in which both are accepted.
"""

import asyncio
import json
import random
from collections import Counter
from dataclasses import dataclass, field

import pytest
from aiohttp import web

from gateway.database.epoch import read_epoch
from gateway.identity.keys import parse_key
from gateway.upstream.http1 import Connection
from regions.identity.identity import BackendIdentity
from tests.conftest import CAMPAIGN, seed_of
from tests.fakes.backend import FakeBackend
from tests.fakes.lab import chat, lab

CASES = 5_000 if CAMPAIGN else 60
SEED = 20261129
AT_ONCE = 4
REGIONS = {"eu-fr-par": "FR", "eu-de-fra": "DE", "us-east": "US"}
OWNERS = {"FR": ("FR", "FR"), "DE": ("DE", "FR"), "US": ("US", "US")}  # head office, ultimate parent: the catalogue's
CERTIFIED = {"FR": {"ISO 27001", "SecNumCloud"}, "DE": {"ISO 27001", "C5"}, "US": set()}
EEA = frozenset({"FR", "DE"})
SETS = {"EEA": EEA, "EU": EEA, "[FR]": {"FR"}, "[DE]": {"DE"}, "[US]": {"US"}, "[FR, US]": {"FR", "US"},
        "[DE, FR, US]": {"FR", "DE", "US"}}  # fmt: skip
CANARY = "carl@example.org"
FAILURES = (503, 503, 503, 500, 429, 307, "close", "garbage", "slow")


@dataclass(frozen=True)
class Rules:
    """What a document says, as this test reads it."""

    process: str
    parent: str = ""
    basis: tuple[str, ...] = ("intra_eea", "scc")
    certificate: str = ""
    mask: bool = False

    def document(self, version):
        owner = f", operator: {{ultimate_parent: {self.parent}}}" if self.parent else ""
        return (
            f"policy: p\nversion: {version}\n"
            f"residency: {{process_in: {self.process}, store_in: [DE, FR, US]{owner}, subprocessors: [DE, FR, US],"
            f" transfer_basis: [{', '.join(self.basis)}]}}\n"
            + (f"backend: {{certifications: [{self.certificate}]}}\n" if self.certificate else "")
            + ("redaction: {input: {email: mask}}\n" if self.mask else "")
        )

    def admits(self, country):
        return (
            country in SETS[self.process]
            and (not self.parent or OWNERS[country][1] in SETS[self.parent])
            and (not self.certificate or self.certificate in CERTIFIED[country])
            and ("intra_eea" if country in EEA else "scc") in self.basis
        )


@dataclass
class World:
    """What is in force, as the oracle sees it, and what it saw go wrong."""

    chance: random.Random
    rules: dict = field(default_factory=dict)  # tenant -> Rules
    living: dict = field(default_factory=dict)  # backend -> (tenant, country)
    keys: dict = field(default_factory=dict)  # key id -> tenant, those that are valid
    ports: dict = field(default_factory=dict)
    callers: dict = field(default_factory=dict)  # canary of a call -> (tenant, key id)
    counts: Counter = field(default_factory=Counter)
    violations: list = field(default_factory=list)

    def judge(self, port, body):
        """A request is being written to the backend at `port`."""
        name = self.ports[port]
        said = json.loads(body)["messages"][0]["content"]
        call = said.split()[0]
        tenant, key = self.callers[call]
        owner, country = self.living.get(name, (None, None))
        self.counts["requests"] += 1
        self.counts[call] += 1
        wrong = [
            fault
            for fault, there in {
                "another tenant's": owner is not None and owner != tenant,
                "revoked backend": owner is None,
                "revoked key": key not in self.keys,
                "outside the policy": country is not None and not self.rules[tenant].admits(country),
                "not redacted": self.rules[tenant].mask and CANARY in said,
            }.items()
            if there
        ]
        self.violations += [(call, tenant, name, country, self.rules[tenant], each) for each in wrong]


@dataclass
class Unsteady(FakeBackend):
    """Fails in a drawn way, and lets a change be made while it holds the call."""

    world: World | None = None
    change: object = None
    elsewhere: str = ""

    async def generate(self, request):
        chance = self.world.chance
        held = chance.random()
        if held < 0.3:
            await self.change()
        elif held < 0.5:
            await asyncio.sleep(chance.random() * 0.01)
        how = chance.choice(FAILURES) if chance.random() < 0.6 else None
        if how is None:
            return await super().generate(request)
        self.world.counts[f"answered {how}"] += 1
        if how == "close":
            request.transport.close()
            return web.Response()
        if how == "garbage":
            return web.Response(text="no answer", content_type="application/json")
        if how == "slow":
            await asyncio.sleep(0.02)
            how = 503
        headers = {"location": f"{self.elsewhere}/v1/chat/completions"} if how == 307 else {}
        return web.json_response({"error": {"message": "no"}}, status=how, headers=headers)


def drawn(chance):
    return Rules(
        process=chance.choice([*SETS, "EEA", "[DE, FR, US]"]),
        parent=chance.choice(["", "", "EEA", "[FR, US]"]),
        basis=chance.choice([("intra_eea",), ("intra_eea", "scc"), ("intra_eea", "scc")]),
        certificate=chance.choice(["", "", "", "ISO 27001", "C5"]),
        mask=chance.random() < 0.3,
    )


class Administration:
    """Makes one change at a time, and tells the oracle when the gateway has taken it over."""

    def __init__(self, made, world):
        self._made, self._world, self._turn, self._version = made, world, asyncio.Lock(), 1

    async def change(self):
        made, world, chance = self._made, self._world, self._world.chance
        async with self._turn:
            kind = chance.choices(["policy", "backend", "key"], [6, 2, 1])[0]
            tenant = chance.choice(("acme", "globex"))
            self._version += 1
            new, directory = getattr(self, f"_{kind}")(made, world, tenant), made.gateway.directory
            with directory._database.read() as session:
                target = read_epoch(session, "eu-1")
            taken_over = directory._on_change

            def both(one):
                """In the step in which the gateway takes it over, the oracle does."""
                taken_over(one)
                if one.epoch == target:
                    new()

            directory._on_change = both
            while directory.epoch != target:
                async with directory._checking:
                    await directory._check()
            directory._on_change = taken_over
            world.counts["changes"] += 1

    def _policy(self, made, world, tenant):
        rules = drawn(world.chance)
        made.control.activate_policy(tenant, rules.document(self._version))
        return lambda: world.rules.__setitem__(tenant, rules)

    def _backend(self, made, world, tenant):
        name = world.chance.choice(sorted(made.identities))
        identity = made.identities[name]
        if name in world.living:
            made.control.revoke_backend(identity.tenant, name)
            return lambda: world.living.pop(name)
        made.control.register_backend(identity, url=made.backends[name].url, models=["small"])
        return lambda: world.living.__setitem__(name, (identity.tenant, REGIONS[identity.region]))

    def _key(self, made, world, tenant):
        record, key = made.control.create_key(tenant, "main")
        old = made.keys[f"{tenant}/main"]
        made.control.revoke_key(tenant, parse_key(old).id)
        made.keys[f"{tenant}/main"] = key.token

        def new():
            world.keys.pop(parse_key(old).id)
            world.keys[record.id] = tenant

        return new


async def ask(made, world, number):
    chance, tenant = world.chance, world.chance.choice(("acme", "globex"))
    call, token = f"case-{number}", made.keys[f"{tenant}/main"]
    world.callers[call] = tenant, parse_key(token).id
    text = f"{call} write to {CANARY}"
    answer = await made.post(chat(text, stream=chance.random() < 0.3), key=token)
    world.counts[f"status {answer.status}"] += 1
    if answer.status >= 500:
        assert answer.error["code"] != "internal_error", answer.body
    world.counts["cases on several backends"] += world.counts.pop(call, 0) > 1


@pytest.mark.campaign
@pytest.mark.timeout(3600)
async def test_no_byte_goes_to_a_backend_that_is_forbidden_at_the_moment_it_is_written(
    tmp_path, monkeypatch, record_property
):
    seed = seed_of(SEED)
    record_property("examples", CASES)
    record_property("seed", seed)
    print(f"seed {seed}")  # shown where it fails
    world = World(random.Random(seed))
    fakes = {
        f"{tenant}/{region}/{tenant}-{REGIONS[region].lower()}{n}": Unsteady(world=world)
        for tenant in ("acme", "globex")
        for region in REGIONS
        for n in (1, 2)
    }

    def set_up(made):
        for tenant in ("acme", "globex"):
            world.rules[tenant] = Rules("[DE, FR, US]")
            made.tenant(tenant, world.rules[tenant].document(1))
            world.keys[parse_key(made.key(f"{tenant}/main")).id] = tenant

    written = Connection.request

    async def request(self, head, body, silence_s, silence=None):
        if body:
            world.judge(int(self.peer.address.rpartition(":")[2]), body)
        return await written(self, head, body, silence_s, silence)

    monkeypatch.setattr(Connection, "request", request)
    monkeypatch.setattr("regions.fleet.fleet.FAILURES", 1 << 30)  # with open circuits hardly anything would be tried
    async with lab(tmp_path, set_up=set_up, backends=fakes, requests={"silence_timeout_s": 5}) as made:
        made.identities = {}
        administration = Administration(made, world)
        for place, fake in fakes.items():
            tenant, region, name = place.split("/")
            world.ports[int(fake.url.rpartition(":")[2])] = name
            world.living[name] = tenant, REGIONS[region]
            made.identities[name] = BackendIdentity("eu-1", tenant, region, name)
            fake.change, fake.elsewhere = administration.change, made.backends["globex-us1"].url
        for first in range(0, CASES, AT_ONCE):
            racing = [ask(made, world, number) for number in range(first, min(first + AT_ONCE, CASES))]
            if world.chance.random() < 0.3:
                racing.append(administration.change())
            await asyncio.gather(*racing)
        kinds = Counter(made.types("acme") + made.types("globex"))
    for name, count in sorted(world.counts.items()):
        record_property(name, count)
    print(dict(world.counts), dict(kinds))
    assert world.violations == []
    assert kinds["inference.accepted"] == kinds["inference.completed"] + kinds["inference.aborted"]
    # So that it cannot pass for want of requests, refusals, retries or changes.
    assert world.counts["requests"] > CASES / 4
    refused = world.counts["status 403"] or (not CAMPAIGN and world.counts["status 401"] + world.counts["status 503"])
    assert world.counts["status 200"] and refused and world.counts["changes"] > CASES / 20
    assert world.counts["cases on several backends"]
