import asyncio
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from starlette.testclient import TestClient

from audit.events.private_value import Private
from audit.incidents.incident import open_incident
from audit.incidents.subject_requests import receive
from audit.log.changes import change_types
from audit.pack.shelf import PackShelf
from audit.private.audit_context import AuditContext
from audit.private.erasure import place_hold
from audit.storage.location import open_reader
from gateway.admin.app import build_admin
from gateway.admin.calls.access import AdminContext
from gateway.identity.keys import KeyHasher
from gateway.policies.study import PolicyStudy
from gateway.records.batches import BatchRecord, Owner, Sealed
from gateway.store.batches.batches import StoredBatches
from gateway.store.control.adapters import adapter_setting
from gateway.store.control.models import named
from regions.catalogue.catalogue import Catalogue
from regions.fleet.deployment import Deployment
from regions.identity.identity import BackendIdentity
from regions.identity.trust import Trust
from tests.audit.conftest import Home, accepted
from tests.gateway.conftest import ACTIVITY, PEPPER
from tests.gateway.parts import COMPILER

DOCUMENT = "policy: acme\nversion: 1\nresidency: {process_in: EEA, store_in: EEA}\n"


class Clock:
    def __init__(self):
        self.now = datetime.now(UTC)

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


class OpenedForEach:
    """A log that is opened for each record, in whatever event loop asks for it."""

    def __init__(self, home):
        self.home = home

    async def append(self, event, private=None):
        async with await self.home.open(open_store=self.home.open_log_and_values) as log:
            return await log.append(event, private)


@pytest.fixture
def record(tmp_path):
    """The log and its private values, empty."""
    home = Home(tmp_path / "record")
    return AuditContext(OpenedForEach(home), home.side, home.reader, home.keys, home.signer)


@pytest.fixture
def shelf(record, tmp_path):
    return PackShelf(tmp_path / "packs", record)


@pytest.fixture
def recorded(record, shelf):
    """On record of tenant acme: a call with content, an incident, a hold, a request: what stands in paths for them."""

    async def work():
        await record.record(accepted("req-1"), Private({"input": "hello"}, SUBJECT))
        incident = await open_incident(record, "acme", laws=("gdpr",))
        pack = await shelf.make("acme", since=None, until=None, actor="system", reason="audit")
        while shelf.pack("acme", pack.id).state == "making":
            await asyncio.sleep(0.02)
        hold = await place_hold(record, "acme")
        with record.reading() as reader:
            change_number, _ = list(change_types(reader, "acme", 0, reader.sizes()["acme"]))[-1]
        matter = await receive(record, "acme", right="access", subject=SUBJECT)
        return {
            "incident": incident,
            "hold": hold,
            "record_number": 0,
            "change_number": change_number,
            "pack": pack.id,
            "matter": matter,
        }

    return asyncio.run(work())


@pytest.fixture
def app(database, events, clock, tmp_path, record):
    return build_admin(
        AdminContext(
            database,
            cell="demo",
            hasher=lambda: KeyHasher(PEPPER),
            check_policy=COMPILER.check,
            on_event=events.append,
            policy_study=lambda store: PolicyStudy(store, Catalogue.load(), partial(open_reader, tmp_path / "log.db")),
            now=clock,
            backend_keys=tmp_path / "backends",
            audit=record,
            packs=PackShelf(tmp_path / "packs", record),
            plan=planned,
        )
    )


@pytest.fixture
def client(app):
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def login(control, client):
    """Makes a person in a role and gives the headers they send."""

    def headers(tenant, *roles):
        person = control.create_person(tenant, "Somebody", roles)
        _, token = control.create_token(tenant, person.id, expires_at=datetime.now(UTC) + timedelta(days=1))
        return {"authorization": f"Bearer {token.token}"}

    return headers


@pytest.fixture
def operator(acme, login):
    return login(None, "operator")


@pytest.fixture
def objects(acme, recorded, database):
    """One of everything in tenant acme, by the name of its path parameter."""
    key, _ = acme.create_key("acme", "support")
    person = acme.create_person("acme", "Ada", ["developer"])
    token, _ = acme.create_token("acme", person.id, expires_at=datetime.now(UTC) + timedelta(days=1))
    acme.activate_policy("acme", DOCUMENT)
    proposal = acme.submit_policy("acme", DOCUMENT)
    deployment = acme.create_deployment(
        Deployment(tenant="acme", id="large", model="large", weights="large", regions=("eu-fr-par",))
    )
    acme.activate_policy(None, DOCUMENT)
    assert acme.submit_policy(None, DOCUMENT).number == proposal.number
    theirs = BackendIdentity("demo", "acme", "eu-fr-par", "acme-vllm")
    acme.register_backend(
        theirs, url="https://10.0.0.7:8000", models=["small"], kind="openai", trust=Trust(pin="0" * 64)
    )
    acme.create_model_name("acme", "support", "assistant", named(targets=["small"]))
    acme.create_adapter("acme", "support", "legal", adapter_setting(model="small", path="legal", sha256="a" * 64))
    batch = BatchRecord(
        id="batch_0f",
        owner=Owner("acme", "support"),
        key_id=key.id,
        endpoint="/v1/embeddings",
        input_file="file-0f",
        status="validating",
        created_at=1.0,
        expires_at=2.0,
        kept_until=3.0,
        sealed=Sealed("0" * 16, b"sealed"),
    )
    assert StoredBatches(database, "demo").add(batch, 1)
    return {
        "batch": batch.id,
        "tenant": "acme", "project": "support", "key": key.id, "person": person.id, "token": token.id,
        "proposal": proposal.number, "backend": "acme-vllm", "region": "eu-fr-par", "deployment": deployment.id,
        **recorded,
    }  # fmt: skip


SUBJECT = "ada@example.org"
BODIES = {
    "read_content": {"reason": "complaint"},
    "answer_access": {"subject": SUBJECT},
    "erase_values": {"subject": SUBJECT},
    "restrict_person": {"subject": SUBJECT},
    "rectify_value": {"seq": 0, "field": "input", "value": "hello again"},
    "create_request": {"subject": SUBJECT, "right": "access"},
    "extend_request": {"reason": "complexity"},
    "close_request": {"outcome": "answered_elsewhere"},
    "create_hold": {"first": 0, "last": 1},
    "create_pack": {"since": "2026-03", "reason": "audit"},
    "create_incident": {"laws": ["gdpr"]},
    "notify_incident": {"clock": "gdpr.authority", "authority": "A supervisory authority"},
    "close_incident": {"reason": "resolved"},
    "set_model_name": {"name": "helper", "targets": ["small"], "defaults": {"temperature": 0.5}},
    "delete_model_name": {"name": "assistant"},
    "create_adapter": {"name": "french", "model": "small", "path": "french/v1", "sha256": "b" * 64},
    "delete_adapter": {"name": "legal"},
    "set_origins": {"origins": ["https://app.example.org"]},
    "create_tenant": {"id": "initech"},
    "create_project": {"id": "extra", **ACTIVITY},
    "check_policy": {"document": DOCUMENT},
    "diff_policy": {"document": DOCUMENT},
    "simulate_policy": {"document": DOCUMENT},
    "check_regions": {},
    "register_backend": {
        "id": "acme-sglang",
        "region": "eu-de-fra",
        "url": "https://10.0.0.8:8000",
        "models": ["small"],
        "pin": "1" * 64,
        "eur_per_million": "0.40",
    },
    "accept_key": {"key_sha256": "2" * 64},
    "explain_policy": {"project": "support", "model": "small"},
    "roll_back_policy": {},
    "submit_policy": {"document": DOCUMENT},
    "activate_policy": {},
    "withdraw_policy": {},
    "create_key": {"project": "support"},
    "rotate_key": {},
    "create_person": {"display_name": "Bob", "roles": ["developer"]},
    "set_roles": {"roles": ["dpo"]},
    "create_token": {"expires_at": (datetime.now(UTC) + timedelta(days=1)).isoformat()},
    "bootstrap": {"display_name": "Root"},
    "device_login": {"id_token": "a.b.c"},
    "set_tenant_limits": {"requests_per_minute": 600},
    "set_project_limits": {"eur_per_day": 12.5},
    "set_key_limits": {"concurrent_requests": 0},
    "detect_marks": {"project": "support", "text": "the sea"},
    "find_answer": {"text": "the sea", "reason": "complaint"},
    "challenge_answer": {"request_id": "req-0", "text": "the sea", "reason": "complaint"},
    "stop_system": {"project": "support", "reason": "judgement"},
    "resume_system": {"project": "support", "reason": "corrected"},
    "create_deployment": {"id": "little", "model": "little", "weights": "m.gguf", "regions": ["eu-fr-par"]},
    "update_incident": {"severity": "high_risk"},
    "plan_deployment": {"weights": "m.gguf", "gpu": "h100"},
    "check_deployment": {"weights": "m.gguf", "replicas": 2},
    "scale_deployment": {"min_replicas": 1, "max_replicas": 3},
    "pin_weights": {"weights_sha256": "0" * 64},
    "set_price": {"model": "small", "input": 0.2, "output": "0.6"},
}
"""What each route that takes a body is sent, by its function's name."""


def planned(weights, cards, more):
    """In the place of the planner: one card is too few."""
    fits = cards.count > 1
    memory = {"weights": 10, "cache": 20 * fits, "peak": 40, "graphs": 1}
    rate = 1000.0 * fits
    return {
        "card": cards.name, "cards": cards.count, "calibrated": True, "context": more["context"] or 4096,
        "concurrency": more["calls"], "prompt": 512, "answer": 256, "parameters": 10**9, "memory": memory,
        "max_concurrency": 9, "first_token_ms": 12.5, "step_ms": 3.0, "tokens_per_s": rate, "fewest_cards": 2,
        "refusal": None if fits else "on 2 cards it fits", "kv_bytes_per_token": 5,
    }  # fmt: skip


def counted(reasons):
    """What a desk calls for a caller that could not be authenticated: it adds the code to `reasons`."""
    return lambda reason, address=None: reasons.append(reason)
