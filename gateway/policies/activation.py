"""Activation of scheduled policies: every gateway of the cell checks, one of them activates."""

import asyncio
import logging
from collections.abc import Callable

logger = logging.getLogger("domicile.gateway")

LOOK_EVERY_S = 1.0


async def activate_scheduled(activate_due: Callable[[], int], every_s: float = LOOK_EVERY_S) -> None:
    """Call `activate_due` every `every_s` seconds, until cancelled. It blocks and returns how many policies it
    activated.

    An error is logged and the call repeated; until then the policies in force remain.
    """
    while True:
        try:
            if count := await asyncio.to_thread(activate_due):
                logger.info("%d scheduled policies were activated or refused", count)
        except Exception as error:  # of any kind: the loop must continue
            logger.warning(
                "scheduled policies cannot be activated: %s; check the control database, it is tried again", error
            )
        await asyncio.sleep(every_s)
