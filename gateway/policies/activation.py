"""Puts scheduled policies in force at their instant: every gateway of the cell looks, one of them does it."""

import asyncio
import logging
from collections.abc import Callable

logger = logging.getLogger("domicile.gateway")

LOOK_EVERY_S = 1.0


async def activate_scheduled(activate_due: Callable[[], int], every_s: float = LOOK_EVERY_S) -> None:
    """Until cancelled. `activate_due` blocks, and says how many it saw to.

    What goes wrong is tried again: until it goes well, what is in force stays in force.
    """
    while True:
        try:
            if count := await asyncio.to_thread(activate_due):
                logger.info("%d scheduled policies were seen to", count)
        except Exception as error:  # of any kind: the next look must come
            logger.warning("scheduled policies cannot be seen to: %s", error)
        await asyncio.sleep(every_s)
