from types import SimpleNamespace

import pytest

from gateway.identity.keys import KeyHasher
from gateway.store.control import Control
from gateway.store.database import Database
from gateway.store.inventory import Inventory

PEPPER = bytes(range(32))
ACTIVITY = {"purpose": "customer support", "legal_basis": "contract"}


def compile_policy(tenant, tenant_document, project_document=None):
    """Stands for `gateway.policies`: a document is good unless it says so itself."""
    for document in (tenant_document, project_document):
        if document is not None and "bad" in document:
            raise ValueError("line 3: residency.proces_in: unknown key")
    if project_document is not None and "loose" in project_document and "loose" not in tenant_document:
        raise ValueError("a project may only tighten")
    policy = SimpleNamespace(policy_id="acme", version="1", hash="0" * 64)
    return SimpleNamespace(tenant=tenant, documents=(tenant_document, project_document), policy=policy)


@pytest.fixture
def data(tmp_path):
    return tmp_path / "data"


@pytest.fixture
def database(data):
    database = Database.open(data)
    yield database
    database.close()


@pytest.fixture
def events():
    return []


@pytest.fixture
def control(database, events):
    return Control(
        database,
        cell="demo",
        hasher=KeyHasher(PEPPER),
        actor="cli:test",
        check_policy=compile_policy,
        on_event=events.append,
    )


@pytest.fixture
def inventory(database):
    return Inventory(database)


@pytest.fixture
def acme(control):
    """Tenant acme with project support."""
    control.create_tenant("acme")
    control.create_project("acme", "support", **ACTIVITY)
    return control
