"""kill -9 at any moment: what was acknowledged is there, and what was left open is closed once."""

import json
import os
import random
import threading
import time
from collections import Counter
from contextlib import closing
from multiprocessing.context import ForkServerProcess

from audit.disclosure import account
from audit.receipt import Receipt
from audit.verify import verify_log
from tests.audit import crash_child
from tests.audit.conftest import Home
from tests.fakes.forks import forks

ON_BOTH_STORES = True
ROUNDS = 30
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


async def test_sixty_kills_lose_no_acknowledged_record_and_leave_no_call_open(home: Home) -> None:
    chance = random.Random(20240613)
    told: list[Receipt] = []
    for turn in range(ROUNDS):
        victims = [Victim(home, node, seed=turn) for node in NODES]
        for victim in victims:
            if turn % 4:  # else it may die while it opens the log
                victim.wait_for_a_receipt()
            time.sleep(chance.random() * 0.08)
            victim.kill()
            told += victim.receipts
    for node in NODES:  # each closes what its own last boot left open
        await (await home.open(node)).close()

    reader = home.reader()
    report = verify_log(reader, home.key)
    leaves = {tenant: list(reader.leaves(tenant)) for tenant in reader.tenants()}
    reader.close()
    assert report.findings == []
    assert [tree.open_requests for tree in report.trees] == [(), (), ()]
    assert all(tree.signed == tree.records for tree in report.trees)

    assert len(told) > 1000
    for receipt in told:
        assert leaves[receipt.tenant][receipt.seq].leaf_hash == receipt.leaf_hash
    assert len({(receipt.tenant, receipt.seq) for receipt in told}) == len(told)

    with closing(home.side()) as side:
        for tenant in ("acme", "globex"):
            states, faults = account(home.reader, side, home.key, tenant)
            assert faults == []
            assert states["withheld"] > 100

    events = [json.loads(leaf.payload) for tenant in ("acme", "globex") for leaf in leaves[tenant]]
    intents = Counter(event["request_id"] for event in events if event["type"] == "inference.accepted")
    outcomes = Counter(event["request_id"] for event in events if event["type"] != "inference.accepted")
    crashed = sum(event.get("reason") == "crash" for event in events)
    assert intents == outcomes
    assert set(outcomes.values()) == {1}
    starts = [json.loads(leaf.payload) for leaf in leaves["_system"]]
    assert crashed == sum(start.get("orphans_closed", 0) for start in starts)
    assert crashed >= ROUNDS
