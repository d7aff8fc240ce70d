"""``domicile up`` as two processes: one limit, one bill, one record; one that dies, and all replaced under load.

The processes are the command as an operator runs it.
"""

import asyncio
import os
import signal
import sys
from contextlib import asynccontextmanager

import aiohttp
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.limits.limit_kinds import LimitFigures
from tests.fakes.lab import chat
from tests.gateway.test_stopping import COMPLETED, ended, gateway, installation, outcomes

TWO = {"port": 0, "workers": 2}
PRICES = {"small": {"input_eur_per_million": 0, "output_eur_per_million": 1e6}}
FIVE_EUROS = {**chat("hi"), "max_tokens": 5}


@asynccontextmanager
async def two_workers(tmp_path, limits=None, **backend):
    """The installation, its supervisor, and what asks on a connection of its own."""
    async with installation(tmp_path, **backend) as (made, _):
        if limits is not None:
            made.control.set_limits("acme", limits, project="main")
        async with gateway(made, tmp_path, listen=TWO, prices=PRICES) as (process, base):
            yield made, process, Asking(made, base)


class Asking:
    def __init__(self, made, base):
        self.base = base
        self._headers = {"authorization": f"Bearer {made.key()}"}

    async def __call__(self, body=None, path="/v1/chat/completions"):
        async with aiohttp.ClientSession() as http:
            return await self.over(http, body, path)

    async def over(self, http, body=None, path="/v1/chat/completions"):
        method = "GET" if body is None else "POST"
        async with http.request(method, self.base + path, json=body, headers=self._headers) as answer:
            return answer.status, await answer.read()

    async def has_counted(self, calls):
        """Whether their metrics come to say so many calls and no more: one is counted once its outcome is on record,
        which may be after its client has the answer."""
        async with asyncio.timeout(60):
            while (counted := await self.counted()) < calls:
                await asyncio.sleep(0.05)
        return counted == calls

    async def counted(self):
        """Calls of models by their metrics."""
        _, text = await self(path="/metrics")
        (family,) = (each for each in text_string_to_metric_families(text.decode()) if each.name == "domicile_requests")
        return sum(sample.value for sample in family.samples if sample.name == "domicile_requests_total")


def children(process):
    return {child.pid: child for child in psutil.Process(process.pid).children()}


async def until(holds):
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.05)


async def test_they_take_calls_together_and_count_as_one(tmp_path):
    async with two_workers(tmp_path, LimitFigures(eur_per_month=60)) as (made, process, ask):
        answers = await asyncio.gather(*(ask(FIVE_EUROS) for _ in range(40)))
        assert sorted(status for status, _ in answers).count(200) == 12
        assert {status for status, _ in answers} == {200, 429}
        assert await ask.has_counted(40)
        assert await ask.counted() == 40, "whichever worker is asked"
        first, second = children(process)
        os.kill(first, signal.SIGKILL)
        await until(lambda: len(children(process)) == 2 and first not in children(process))
        for _ in range(10):
            assert (await ask(FIVE_EUROS))[0] == 429, "the limit outlives a worker"
        assert await ask.has_counted(50), "and so does what it had counted when it was last asked"
        process.terminate()
        assert await ended(process) == 0
        assert not psutil.pid_exists(second)
    assert list(outcomes(made).values()) == [COMPLETED] * 12
    assert made.verify().ok


async def test_a_worker_that_is_killed_takes_its_calls_with_it_and_no_other(tmp_path):
    async with two_workers(tmp_path, delay_s=1.0, pieces=4) as (made, process, ask):
        calls = [asyncio.create_task(ask(chat(f"hi {n}", stream=True))) for n in range(12)]
        await until(lambda: len(made.backends["acme-1"].bodies) == 12)
        victim, _ = children(process)
        os.kill(victim, signal.SIGKILL)
        answers = await asyncio.gather(*calls, return_exceptions=True)
        whole = [each for each in answers if not isinstance(each, Exception) and each[1].endswith(b"[DONE]\n\n")]
        assert 0 < len(whole) < 12
        await until(lambda: sum(len(each) == 2 for each in outcomes(made).values()) == 12)
        over = [each[1] for each in outcomes(made).values()]
        assert over.count(("inference.aborted", "crash")) == 12 - len(whole)
        assert over.count(("inference.completed", None)) == len(whole)


async def test_replacing_them_under_load_fails_no_call(tmp_path):
    async with two_workers(tmp_path) as (made, process, ask):
        before, failed, done = set(children(process)), [], 0

        async def call_on(session):
            nonlocal done
            while not over.is_set():
                try:
                    status, _ = await (ask.over(session, chat("hi")) if session is not None else ask(chat("hi")))
                except aiohttp.ClientError as error:
                    failed.append(error)
                else:
                    failed.extend([status] * (status != 200))
                    done += 1

        over = asyncio.Event()
        async with aiohttp.ClientSession() as kept:
            callers = [asyncio.create_task(call_on(session)) for session in (kept, kept, None, None)]
            process.send_signal(signal.SIGUSR2)
            await until(lambda: len(children(process)) == 2 and not before & set(children(process)))
            over.set()
            await asyncio.gather(*callers)
        assert failed == []
        assert await ask.has_counted(done)
        process.terminate()
        assert await ended(process) == 0
    assert list(outcomes(made).values()) == [COMPLETED] * done
    assert made.verify().ok


async def test_they_end_with_their_supervisor(tmp_path):
    async with two_workers(tmp_path) as (_, process, ask):
        workers = [psutil.Process(pid) for pid in children(process)]
        assert (await ask(chat("hi")))[0] == 200
        process.kill()
        await asyncio.to_thread(psutil.wait_procs, workers, 60)
        assert not any(worker.is_running() for worker in workers)


@pytest.mark.parametrize("what", ["a port that is taken", "a record that cannot be opened"])
async def test_one_that_cannot_start_says_why_and_nothing_stays(tmp_path, what):
    async with installation(tmp_path) as (made, _):
        config = tmp_path / "config.yaml"
        taken = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        port = taken.sockets[0].getsockname()[1] if what == "a port that is taken" else 0
        config.write_text(f"listen: {{port: {port}, workers: 2}}\nnode: gw-1\n")
        if port == 0:
            (made.data / "audit" / "log.db").write_bytes(b"no database" * 1000)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "gateway", "up", "-c", str(config), "--data", str(made.data)),
            stderr=asyncio.subprocess.PIPE,
        )
        _, said = await asyncio.wait_for(process.communicate(), 60)
        taken.close()
        assert process.returncode == 1
        assert b"error: " in said
        assert b"Traceback" not in said, said.decode()
        if port:
            assert str(port).encode() in said
