import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import redis
import sqlalchemy

from gateway.configuration.settings import Vault
from gateway.database.database import Database
from gateway.database.tables.control import Row
from gateway.identity.keys import KeyHasher
from gateway.secrets.vault import VaultClient
from gateway.store.control.control import Control
from gateway.store.reports.inventory import Inventory
from policy.document.document import Limits
from tests.fakes import migrated
from tests.fakes import postgresql as servers
from tests.fakes.needs import missing
from tests.fakes.vault import TOKEN, running_vault

PEPPER = bytes(range(32))
ACTIVITY = {"purpose": "customer support", "legal_basis": "contract"}


def compile_policy(tenant, tenant_document, project_document=None, operator_document=None):
    """Stands for `gateway.policies.compiled`: a document is good unless it says so itself."""
    for document in (tenant_document, project_document, operator_document):
        if document is not None and "bad" in document:
            raise ValueError("line 3: residency.proces_in: unknown key")
    if project_document is not None and "loose" in project_document and "loose" not in tenant_document:
        raise ValueError("a project may only tighten")
    policy = SimpleNamespace(policy_id="acme", version="1", hash="0" * 64, limits=Limits())
    return SimpleNamespace(tenant=tenant, documents=(tenant_document, project_document), policy=policy)


@pytest.fixture
def data(tmp_path):
    return tmp_path / "data"


def pytest_generate_tests(metafunc):
    """A module that says ``ON_BOTH_DATABASES = True`` runs on PostgreSQL too, but for tests that look at files."""
    if "database" in metafunc.fixturenames and getattr(metafunc.module, "ON_BOTH_DATABASES", False):
        files = "data" in metafunc.definition._fixtureinfo.argnames
        metafunc.parametrize("database", ["sqlite"] if files else ["sqlite", "postgresql"], indirect=True)


@pytest.fixture
def migrations_run():
    """Here every control store is made by the migrations."""
    with migrated.run(Database):
        yield


@pytest.fixture(scope="session")
def postgresql_url():
    """An empty database."""
    with servers.postgresql() as url:
        yield url


@pytest.fixture(scope="session")
def redis_server():
    """URL of DOMICILE_TEST_REDIS_URL, else of a server that is started here."""
    given = os.environ.get("DOMICILE_TEST_REDIS_URL")
    if given:
        yield given
        return
    program = shutil.which("redis-server") or shutil.which("valkey-server")
    if program is None:
        missing("no Redis: install Debian's redis-server, or set DOMICILE_TEST_REDIS_URL")
    with tempfile.TemporaryDirectory(prefix="redis") as folder:  # a socket's path must be short
        socket = Path(folder) / "socket"
        options = ("--port", "0", "--unixsocket", socket, "--save", "", "--dir", folder)
        with subprocess.Popen([program, *map(str, options)], stdout=subprocess.DEVNULL) as server:
            deadline = time.monotonic() + 10
            while not socket.exists():
                assert server.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.02)
            yield f"unix://{socket}"
            server.terminate()


@pytest.fixture
def redis_url(redis_server):
    """With nothing in it."""
    with redis.Redis.from_url(redis_server) as client:
        client.flushdb()
    return redis_server


@pytest.fixture
def database(data, request):
    if getattr(request, "param", "sqlite") == "sqlite":
        database = Database.open(data)
    else:
        database = request.getfixturevalue("postgresql")
    yield database
    database.close()


@pytest.fixture
def postgresql(data, postgresql_url):
    """A PostgreSQL with our tables, and nothing in them."""
    database = Database.open(data, url=postgresql_url)
    with database.engine.begin() as connection:
        tables = ", ".join(table.name for table in Row.metadata.sorted_tables)
        connection.execute(sqlalchemy.text(f"TRUNCATE {tables}"))
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


# --- a fake Vault that runs, and what it is reached by --------------------------------------------------------------


@pytest.fixture
def vault():
    with running_vault() as running:
        yield running


@pytest.fixture
def token_file(tmp_path):
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    path.chmod(0o640)
    return path


@pytest.fixture
def connect(vault, token_file):
    """Makes clients, as configured by keywords."""
    made = []

    def client(**settings):
        asked = {"address": vault.url, "token_file": token_file, "timeout_s": 0.3, **settings}
        made.append(VaultClient(Vault(**asked), backoff_s=0.01))
        return made[-1]

    yield client
    for each in made:
        each.close()
