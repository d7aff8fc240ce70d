"""A gateway that is killed between two steps of a change: the child process of `store/test_answers`."""

import os
import signal
from datetime import UTC, datetime
from pathlib import Path

from starlette.testclient import TestClient

from gateway.admin.app import build_admin
from gateway.admin.calls.access import AdminContext
from gateway.database.database import Database
from gateway.identity.keys import KeyHasher
from gateway.store import change, idempotent_answers
from tests.gateway.conftest import PEPPER
from tests.gateway.parts import COMPILER

KEYS = "/tenants/acme/keys"


def admin_context(database, now=lambda: datetime.now(UTC)):
    return AdminContext(
        database,
        cell="demo",
        hasher=lambda: KeyHasher(PEPPER),
        check_policy=COMPILER.check,
        on_event=lambda event: None,
        now=now,
    )


def make_a_key_and_die(step, url, data, token):
    """Dies once the call is `claimed`, the store `changed`, the change `noted`, or all of it `committed`."""

    def die(*_):
        os.kill(os.getpid(), signal.SIGKILL)

    noted = change.note_change
    if step == "claimed":
        change.bump_epoch = die
    elif step == "changed":
        change.note_change = die
    elif step == "noted":
        change.note_change = lambda *said: (noted(*said), die())
    else:
        idempotent_answers.Answers.keep = die
    database = Database.open(Path(data), url=url or None)
    with TestClient(build_admin(admin_context(database))) as client:
        headers = {"authorization": token, "idempotency-key": "k-1"}
        client.post(KEYS, headers=headers, json={"project": "support"})
