"""A gateway with something to show: two tenants, people in every role, calls that were answered, masked and refused."""

import asyncio
import time
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from unittest.mock import patch

from audit.incidents.pack_inputs import evidence_sources
from audit.privacy.kept_content import content_sources
from gateway.evidence_pack.pack_sources import give_sources
from gateway.identity.roles import ROLE_TABLE
from gateway.store.reports.fleet_inventory import deployment_at, replicas_of
from regions.errors import LaunchError
from regions.fleet.deployment import Deployment
from tests.fakes.backend import FakeBackend
from tests.fakes.lab import POLICY, chat, lab, until
from tests.fakes.launcher import FakeLauncher

LARGE = Deployment(
    tenant="acme",
    id="large",
    model="large",
    weights="large.gguf",
    regions=("eu-fr-par",),
    gpu="h100",
    min_replicas=1,
    max_replicas=2,
    micro_eur_per_hour=2_500_000,
)
APART = LARGE.model_copy(update={"id": "apart", "model": "apart", "kind": "disaggregated", "prefill": 1})
BROKEN = LARGE.model_copy(update={"id": "broken", "model": "broken", "weights": "none.gguf"})
MARKUP = '<img src=x onerror="alert(1)">'
KEEPING = POLICY.replace("content: none", "content: 'encrypted, 30d'")
STRICTER = (
    POLICY.replace("version: 1", "version: 2").replace("process_in: EEA", "process_in: [FR]")
    + """tests:
  - {name: the US is refused, given: {compute_country: US}, expect: deny}
"""
)
OPERATORS = "policy: operator\nversion: 1\nresidency: {process_in: EEA, store_in: EEA}\n"
PRICES = {"small": {"input_eur_per_million": 1000, "output_eur_per_million": 3000}}
PROMPTS = (
    "Summarise the contract of last week in three sentences.",
    "Write to ada@example.org that her order is on its way.",
    "My IBAN is DE89370400440532013000, please check the transfer.",
    "Translate this sentence to French: the meeting is at nine.",
)


def told():
    """What an engine tells that writes 80 tokens a second on a card of 420 W."""
    now = time.monotonic()
    return f"""domicile_backend_sequences_running 3
domicile_backend_sequences_waiting 1
domicile_backend_kv_blocks_used 620
domicile_backend_kv_blocks 1000
domicile_backend_tokens_total{{gen_ai_token_type="output"}} {80 * now}
gen_ai_server_time_to_first_token_seconds_count {now}
gen_ai_server_time_to_first_token_seconds_sum {0.18 * now}
domicile_backend_gpu_utilisation_ratio 0.87
domicile_backend_gpu_memory_used_bytes 70e9
domicile_backend_gpu_memory_bytes 80e9
domicile_backend_gpu_power_watts 420
domicile_backend_gpu_energy_joules_total {420 * now}
"""


class Launcher(FakeLauncher):
    """Starts what tells of its speed. Of `BROKEN` the first start fails and the second does not end (see `settled`)."""

    tried = False
    metrics = staticmethod(told)

    async def start(self, spec, **how):
        if spec.served_name == BROKEN.model:
            if self.tried:
                await asyncio.sleep(3600)
            self.tried = True
            raise LaunchError("backend did not start: no memory for 160 GB of weights on h100; ask for 4xh100")
        return await super().start(spec, **how)


def launched(data, authority, *, on_change, **_):
    return Launcher(on_change=on_change)


def set_up(made):
    """Tenants acme and globex, with a person in each role; and a name with markup wherever one is free."""
    control = made.control
    made.tenant("acme", POLICY)
    made.project("acme", "research", purpose=f"research {MARKUP}", risk_class="high", ai_system_id="cv-screening")
    made.tenant("globex", POLICY)
    control.create_tenant("fresh")  # which has nothing yet, not even a record
    key, _ = control.create_key("acme", "main", label=MARKUP)
    made.people = {}
    for role in ROLE_TABLE:
        made.people[None, role] = control.create_person(None, f"Staff {role}", [role]).id
        if role != "operator":
            for tenant in ("acme", "globex"):
                made.people[tenant, role] = control.create_person(tenant, f"{role} {MARKUP}"[:60], [role]).id
    proposal = control.submit_policy("acme", STRICTER, person=made.people["acme", "developer"])
    made.values = {
        "tenant": "acme",
        "project": "research",
        "number": 0,
        "key": key.id,
        "person": made.people["acme", "developer"],
        "token": "abcdefgh",
        "deployment": "large",
        "hold": "01a21faa-0c27-76a6-b43d-f0713b4b3c3e",
        "incident": "01a21faa-0c27-76a6-b43d-f0713b4b3c3e",
        "matter": "01a21faa-0c27-76a6-b43d-f0713b4b3c3e",
        "proposal": proposal.number,
    }
    """Of tenant acme, what stands in a path for its parameters."""
    control.submit_policy(None, OPERATORS, person=made.people[None, "dpo"])
    made.people[None, "second"] = control.create_person(None, "Grace Hopper", ["operator"]).id


@asynccontextmanager
async def scene(tmp_path, calls=12, **settings):
    backends = {
        "acme/eu-fr-par/acme-1": FakeBackend(metrics=told),
        "acme/eu-de-fra/acme-2": FakeBackend(),
        "globex/eu-fr-par/globex-1": FakeBackend(),
    }
    kept = list(evidence_sources), list(content_sources)
    settings.setdefault("prices", PRICES)
    give_sources()  # as `domicile up` does
    try:
        with patch("gateway.server.fleet.LocalLauncher", launched):
            async with lab(tmp_path, set_up=set_up, backends=backends, **settings) as made:
                for number in range(calls):
                    await made.post(chat(PROMPTS[number % len(PROMPTS)], stream=number % 3 == 0))
                await made.post(chat("use AKIAIOSFODNN7EXAMPLE for the upload"))
                await made.post(chat("hello"), key="globex/main")
                for wish in (LARGE, APART, BROKEN):
                    await asyncio.to_thread(made.control.create_deployment, wish)
                await until(lambda: settled(made))
                made.values["pack"] = await packed(made)
                made.values["change"] = await changed(made, "tenants/acme/people", "acme")
                made.values["installation_change"] = await changed(made, "staff", "_system")
                yield made
    finally:
        evidence_sources[:], content_sources[:] = kept


def settled(made):
    """Whether all that can start has, so that the fleet writes nothing while a test's own write holds up the loop."""
    database = made.control._database
    states = [each.state for wish in (LARGE, APART, BROKEN) for each in replicas_of(database, "acme", wish.id).items]
    return sorted(states) == ["ready", "ready", "ready", "starting"] and (
        deployment_at(database, "acme", BROKEN.id).failures == 1
    )


async def changed(made, path, tree):
    """The number of the record of a person who is added with the API, which the record tells of."""
    headers = {"authorization": f"Bearer {session_of(made, None, 'operator')}"}
    body = {"display_name": f"changed {MARKUP}", "roles": ["auditor"]}
    async with made.http.post(f"{made.base}/admin/v1/{path}", json=body, headers=headers) as answer:
        assert answer.status == 201, await answer.text()
    return [event["type"] for event in made.events(tree)].index("admin.person.created")


async def packed(made, tenant="acme"):
    """The id of an evidence pack that is made, once a checkpoint is signed."""
    url = f"{made.base}/admin/v1/tenants/{tenant}/packs"
    headers = {"authorization": f"Bearer {session_of(made, None, 'operator')}"}
    for _ in range(100):
        state = await (await made.http.post(url, json={"reason": "scene"}, headers=headers)).json()
        while state["state"] == "making":
            await asyncio.sleep(0.05)
            state = await (await made.http.get(f"{url}/{state['id']}", headers=headers)).json()
        if state["state"] == "made":
            return state["id"]
        await asyncio.sleep(0.1)
    raise AssertionError(state)


def token_of(made, tenant, role):
    """A one-time token for the console of the person in this role."""
    person = made.people[tenant, role]
    return made.control.create_sign_in(tenant, person)[1].token


def session_of(made, tenant, role, life=timedelta(hours=1)):
    """The session's token of somebody who is signed in."""
    return made.control.open_session(tenant, made.people[tenant, role], life=life, authenticated_at=datetime.now(UTC))[
        1
    ].token
