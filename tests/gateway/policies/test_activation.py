import asyncio
from contextlib import suppress

from gateway.policies.activation import activate_scheduled


async def test_it_looks_again_and_again_also_after_what_went_wrong():
    looks = []

    def look():
        looks.append(len(looks))
        if len(looks) == 2:
            raise RuntimeError("the database is away")
        return 1 if len(looks) == 3 else 0

    task = asyncio.create_task(activate_scheduled(look, every_s=0.001))
    while len(looks) < 5:
        await asyncio.sleep(0.005)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    assert looks[:5] == [0, 1, 2, 3, 4]
