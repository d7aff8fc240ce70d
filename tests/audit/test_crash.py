"""kill -9 at any moment, commands in between: what was acknowledged is there, what was left open is closed once."""

import json
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from multiprocessing.context import ForkServerProcess

import pytest

from audit.log.receipt import Receipt
from audit.verification.disclosure import account
from audit.verification.verify import verify_log
from tests.audit import crash_child
from tests.audit.conftest import Home
from tests.conftest import CAMPAIGN, seed_of
from tests.fakes.forks import forks

ON_BOTH_STORES = True
ROUNDS = 30 if CAMPAIGN else 10
PARTS = range(CAMPAIGN or 1)
"""Each on a log of its own: commands read the whole log, and writers beside them do not wait."""
COMMANDS = (
    ["show", "acme"],
    ["verify"],
    ["anchor"],
    ["hold", "list", "acme"],
    ["dsar", "acme", "--subject", "person 1"],
    ["retention", "--dry-run"],
    ["publish"],
    ["clock"],
)
"""Run beside the writers. Exit status 0 or 1: before the first record of a tenant some have nothing to do."""
COMMANDS_A_PART = ROUNDS * 3 // 10
NODES = ("gw-1", "gw-2")  # two writers of one file; each is killed once a round


class Victim:
    """A child process and the receipts that it told before it died."""

    def __init__(self, home: Home, node: str, seed: int) -> None:
        self.receipts: list[Receipt] = []
        folder = str(home.path.parent.parent)
        reading, writing = forks.Pipe(duplex=False)
        self._process: ForkServerProcess = forks.Process(target=_child, args=(folder, home.url, node, writing, seed))
        self._process.start()
        writing.close()
        self._reader = threading.Thread(target=self._read, args=(reading,))
        self._reader.start()

    def _read(self, reading: object) -> None:
        with reading, open(os.dup(reading.fileno()), encoding="ascii") as lines:
            for line in lines:
                self.receipts.append(Receipt.parse(line))

    def wait_for_a_receipt(self) -> None:
        deadline = time.monotonic() + 30
        while not self.receipts and self._process.is_alive() and time.monotonic() < deadline:
            time.sleep(0.002)

    def kill(self) -> None:
        assert self._process.is_alive(), "the child ended by itself: see its traceback"
        self._process.kill()
        self._process.join()
        self._reader.join()
        self._process.close()


def _child(folder: str, url: str | None, node: str, writing: object, seed: int) -> None:
    crash_child.run(folder, url, node, writing.fileno(), seed)


def run_command(home: Home, words: list[str]) -> int | None:
    process = forks.Process(target=crash_child.command, args=(str(home.path.parent.parent), home.url, words))
    process.start()
    process.join(600)  # on a busy machine a command may wait for its turn
    return process.exitcode


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.campaign
async def test_kills_lose_no_acknowledged_record_and_leave_no_call_open(
    home: Home, part: int, record_property: Callable[[str, object], None]
) -> None:
    seed = seed_of(20240613)
    record_property("seed", seed)
    chance = random.Random(seed)
    told: list[Receipt] = []
    commanded = set(chance.sample(range(ROUNDS * len(NODES)), COMMANDS_A_PART))
    for turn in range(ROUNDS):
        victims = [Victim(home, node, seed=turn) for node in NODES]
        for at, victim in enumerate(victims, turn * len(NODES)):
            if turn % 4:  # else it may die while it opens the log
                victim.wait_for_a_receipt()
            time.sleep(chance.random() * 0.08)
            if at in commanded:
                assert run_command(home, chance.choice(COMMANDS)) in (0, 1)
            victim.kill()
            told += victim.receipts
    for node in NODES:  # each closes what its own last boot left open
        await (await home.open(node)).close()

    reader = home.reader()
    report = verify_log(reader, home.key)
    leaves = {tenant: list(reader.leaves(tenant)) for tenant in reader.tenants()}
    reader.close()
    assert report.findings == []
    assert [tree.open_requests for tree in report.trees] == [()] * len(report.trees)
    assert all(tree.signed == tree.records for tree in report.trees)

    assert len(told) > 30 * ROUNDS
    for receipt in told:
        assert leaves[receipt.tenant][receipt.seq].leaf_hash == receipt.leaf_hash
    assert len({(receipt.tenant, receipt.seq) for receipt in told}) == len(told)

    with closing(home.side()) as side:
        for tenant in ("acme", "globex"):
            states, faults = account(home.reader, side, home.key, tenant)
            assert faults == []
            assert states["withheld"] > 3 * ROUNDS

    events = [json.loads(leaf.payload) for tenant in ("acme", "globex") for leaf in leaves[tenant]]
    events = [event for event in events if event["type"].startswith("inference.")]  # commands record what they read
    intents = Counter(event["request_id"] for event in events if event["type"] == "inference.accepted")
    outcomes = Counter(event["request_id"] for event in events if event["type"] != "inference.accepted")
    crashed = sum(event.get("reason") == "crash" for event in events)
    record_property("kills", ROUNDS * len(NODES))
    record_property("commands", len(commanded))
    record_property("receipts", len(told))
    record_property("examples", ROUNDS * len(NODES))
    assert intents == outcomes
    assert set(outcomes.values()) == {1}
    starts = [json.loads(leaf.payload) for leaf in leaves["_system"]]
    assert crashed == sum(start.get("orphans_closed", 0) for start in starts)
    assert crashed >= ROUNDS
