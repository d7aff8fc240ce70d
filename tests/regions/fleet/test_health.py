import asyncio

import pytest

from regions.fleet.fleet import Fleet
from regions.fleet.health import AT_ONCE, MISSES, Prober
from tests.regions.fleet.test_fleet import backend

ONE, TWO, THREE = backend("acme-1"), backend("acme-2"), backend("globex-1", "globex")


def up(fleet):
    return {name for name, load in fleet.loads(fleet).items() if load.available}


async def test_who_is_not_ready_gets_no_calls_until_it_is():
    fleet, ready = Fleet([ONE, TWO, THREE]), {"acme-1", "globex-1"}

    async def probe(one):
        return one.id in ready

    prober = Prober(fleet, probe)
    await prober.sweep()
    assert up(fleet) == {"acme-1", "globex-1"}
    ready.add("acme-2")
    await prober.sweep()
    assert up(fleet) == {"acme-1", "acme-2", "globex-1"}


@pytest.mark.parametrize("error", [ConnectionRefusedError(), ValueError("garbage"), TimeoutError()])
async def test_a_probe_that_keeps_failing_is_a_no_and_stops_nobody_else(error):
    fleet = Fleet([ONE, TWO])

    async def probe(one):
        if one is ONE:
            raise error
        return True

    prober = Prober(fleet, probe)
    for _ in range(MISSES):
        await prober.sweep()
    assert up(fleet) == {"acme-2"}


async def test_one_that_hangs_is_not_ready_and_holds_nobody_up():
    fleet = Fleet([ONE, TWO])

    async def probe(one):
        if one is ONE:
            await asyncio.sleep(3600)
        return True

    prober = Prober(fleet, probe, timeout_s=0.02)
    async with asyncio.timeout(5):
        for _ in range(MISSES):
            await prober.sweep()
    assert up(fleet) == {"acme-2"}


async def test_a_missed_probe_now_and_then_costs_nobody_its_backend():
    fleet, answers = Fleet([ONE]), [True, TimeoutError(), TimeoutError()] * 4

    async def probe(one):
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    prober = Prober(fleet, probe)
    while answers:
        await prober.sweep()
        assert up(fleet) == {"acme-1"}


async def test_one_that_never_answered_is_not_up_at_its_first_silence():
    fleet, answers = Fleet([ONE]), [TimeoutError(), True, TimeoutError(), TimeoutError()]

    async def probe(one):
        if isinstance(answer := answers.pop(0), Exception):
            raise answer
        return answer

    prober = Prober(fleet, probe)
    await prober.sweep()
    assert up(fleet) == set()
    while answers:
        await prober.sweep()
        assert up(fleet) == {"acme-1"}, "it has answered since"


async def test_it_probes_on_a_beat_until_cancelled():
    probed = []

    async def probe(one):
        probed.append(one.id)
        return True

    task = asyncio.create_task(Prober(Fleet([ONE]), probe, interval_s=0.01).run())
    async with asyncio.timeout(5):
        while len(probed) < 3:
            await asyncio.sleep(0.005)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_large_fleet_is_not_probed_all_at_once():
    running, most = 0, 0

    async def probe(one):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1
        return True

    fleet = Fleet([backend(f"acme-{number}") for number in range(3 * AT_ONCE)])
    await Prober(fleet, probe).sweep()
    assert most == AT_ONCE


async def test_who_left_during_the_probe_stays_away():
    fleet = Fleet([ONE, TWO])

    async def probe(one):
        fleet.replace([TWO])
        return True

    await Prober(fleet, probe).sweep()
    assert list(fleet) == [TWO]
