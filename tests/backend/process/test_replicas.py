"""Several engines behind one server: requests are shared out, one that dies costs its own alone, and what is said of
the backend is of all of them."""

import asyncio
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from backend.engine.core.progress import Stats
from backend.engine.core.sampling import SamplingParams
from backend.engine_config import EngineConfig
from backend.errors import CannotSleep, ConfigError, EngineDead, Overloaded, ProjectBusy
from backend.process.call import Call
from backend.process.messages import AddSequence, Sleep, Wake
from backend.process.replicas import Replicas, engines_of, total_of
from tests.backend.process.test_supervision import ASK, ready, text_of
from tests.backend.running import BLOCKS, Backend


class Client:
    """As much of an `EngineClient` as requests and turns need."""

    def __init__(self, refuses: type[Sleep] | type[Wake] | None = None, **changes: Any) -> None:
        self.config = EngineConfig(model="", **changes)
        self.capacity = 8
        self.alive, self.full, self.held = True, False, 0
        self.refuses, self.turns = refuses, list[type]()
        self.asked: list[list[int]] = []

    @property
    def load(self) -> int:
        return self.held

    def load_of(self, project: bytes) -> int:
        return self.held if project == b"p" else 0

    def require_alive(self) -> None:
        if not self.alive:
            raise EngineDead("dead; restart the backend")

    def submit(self, sequences: Sequence[AddSequence]) -> Call:
        if self.full:
            raise Overloaded("full; try again")
        self.asked.append(sequences[0].prompt)
        self.held += len(sequences)
        return Call(lambda ids: None, range(len(sequences)))

    async def change_state(self, to: type[Sleep] | type[Wake]) -> int:
        if to is self.refuses:
            raise CannotSleep("no room; try later")
        self.turns.append(to)
        return 5


def group_of(*clients: Client) -> Replicas:
    made: Any = clients
    return Replicas(made)


def asked(prompt: list[int], project: bytes = b"p") -> list[AddSequence]:
    return [AddSequence(0, prompt, SamplingParams(max_tokens=1), project=project)]


def test_requests_go_to_the_engine_with_least_to_do() -> None:
    clients = Client(), Client(), Client()
    group = group_of(*clients)
    for number in range(6):
        group.submit(asked([number, 7]))
    assert [client.held for client in clients] == [2, 2, 2]


def test_a_prompt_goes_where_its_beginning_was_unless_that_is_much_busier() -> None:
    clients = Client(), Client()
    group = group_of(*clients)
    start = list(range(64))
    group.submit(asked([*start, 1]))
    for last in range(4):
        group.submit(asked([*start, last]))
    assert [client.held for client in clients] == [5, 0]
    group.submit(asked([*start, 9]))
    assert [client.held for client in clients] == [5, 1]
    other = asked([*start, 1])[0]
    group.submit([AddSequence(0, other.prompt, other.params, cache_root=b"another tenant's", project=b"p")])
    assert [client.held for client in clients] == [5, 2]


def test_an_engine_that_is_full_or_dead_is_passed_over_and_all_full_are_said_so() -> None:
    first, second = Client(), Client()
    group = group_of(first, second)
    first.full = True
    group.submit(asked([1]))
    second.full = True
    with pytest.raises(Overloaded, match="queues of all engines are full"):
        group.submit(asked([1]))
    first.full = second.alive = False
    group.submit(asked([1]))
    assert len(first.asked) == len(second.asked) == 1
    first.alive = False
    with pytest.raises(EngineDead):
        group.submit(asked([1]))


def test_a_projects_share_is_of_all_engines_together() -> None:
    group = group_of(Client(max_per_project=2), Client(max_per_project=2))
    group.submit(asked([1]))
    group.submit(asked([2]))
    with pytest.raises(ProjectBusy):
        group.submit(asked([3]))
    group.submit(asked([3], project=b"another"))


async def test_all_engines_sleep_or_none() -> None:
    clients = Client(), Client()
    assert await group_of(*clients).change_state(Sleep) == 10
    clients = Client(), Client(refuses=Sleep), Client()
    with pytest.raises(CannotSleep):
        await group_of(*clients).change_state(Sleep)
    assert [client.turns for client in clients] == [[Sleep, Wake], [], [Sleep, Wake]]
    clients[0].alive = False
    with pytest.raises(EngineDead):
        await group_of(*clients).change_state(Sleep)


def test_figures_are_those_of_all() -> None:
    one = Stats(*range(10), expert_pairs=[3, 4], draft_places=[(8, 6), (8, 3), (8, 1)])
    two = Stats(*[1] * 10, expert_pairs=[10, 20], draft_places=[(2, 1)])
    assert total_of([one, two]) == Stats(*range(1, 11), expert_pairs=[13, 24], draft_places=[(10, 7), (8, 3), (8, 1)])
    assert total_of([one]) == one


def test_engines_get_cards_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    config = EngineConfig(model="", device="cuda", tensor_parallel_size=2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,GPU-7")
    found = [client._own_environment for client in engines_of(config, 2).clients]
    assert found == [{"CUDA_VISIBLE_DEVICES": "4,5"}, {"CUDA_VISIBLE_DEVICES": "6,GPU-7"}]
    with pytest.raises(ConfigError, match=r"3 engines on 2 cards each need 6.*names 4; lower --data-parallel-size"):
        engines_of(config, 3)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert engines_of(config, 2).clients[1]._own_environment == {"CUDA_VISIBLE_DEVICES": "2,3"}
    assert engines_of(config, 1).clients[0]._own_environment == {}


@pytest.fixture(scope="module")
def backend(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    options = ["--model", str(folder), "--served-name", "tiny", "--data-parallel-size", "2"]
    with Backend(tmp_path_factory.mktemp("log") / "log", *options) as found:
        yield found


async def test_one_engine_that_dies_costs_its_own_answers_and_comes_back(backend: Backend) -> None:
    first, second = backend.engines
    async with aiohttp.ClientSession(backend.url) as http:
        expected = await text_of(http)
        long = {**ASK, "max_tokens": 3900, "stream": True}
        answers = [await http.post("/v1/completions", json={**long, "prompt": text}) for text in ("the sea", "a hill")]
        for answer in answers:
            await answer.content.readline()
        first.send_signal(signal.SIGKILL)
        bodies = await asyncio.gather(*(answer.text() for answer in answers))
        assert sorted("engine_unavailable" in body for body in bodies) == [False, True]
        assert await text_of(http) == expected  # at once, by the other
        async with asyncio.timeout(60):
            while first in (engines := backend.engines) or len(engines) < 2:
                await asyncio.sleep(0.05)
        assert second in engines
        assert "engine 0 of 2" in backend.log and "requests go to the others" in backend.log


async def test_scrub_sleep_wake_and_figures_are_of_all_engines(backend: Backend) -> None:
    async with aiohttp.ClientSession(backend.url) as http:
        async with asyncio.timeout(60):
            while (scrubbed := await http.post("/scrub")).status == 503:  # the replaced engine still loads
                await asyncio.sleep(0.1)
        body = await scrubbed.json()
        assert body["residue_bytes"] == 0 and body["blocks"] == 2 * int(BLOCKS)
        await ready(http)
        async with http.get("/metrics") as metrics:
            assert f"domicile_backend_kv_blocks {2.0 * int(BLOCKS)}" in await metrics.text()
        expected = await text_of(http)
        assert (await http.post("/sleep")).status == 200
        assert (await http.post("/v1/completions", json=ASK)).status == 503
        assert (await http.post("/wake")).status == 200
        assert await text_of(http) == expected
    assert backend.stop() == 0
