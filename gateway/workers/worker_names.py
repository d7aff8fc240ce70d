"""What workers are called in the record: the gateway's name, their place, and a letter."""

import re
from pathlib import Path

GENERATIONS = "ab"
"""A worker and its replacement run side by side for a while, and need different names."""


def worker_name(node: str, place: int, generation: str) -> str:
    return f"{node}-{place}{generation}"


def gateway_of(node: str) -> str:
    """The gateway that the worker called `node` is of; `node` itself where it is no worker's name."""
    named = re.fullmatch(rf"(.+)-\d+[{GENERATIONS}]", node)
    return node if named is None else named[1]


def left_behind(folder: Path, node: str, place: int, generation: str, places: int) -> list[str]:
    """Names of workers that were killed that no worker will have again: for the worker at `place`, its other
    generation; for the first one, also those at places beyond the present number. Read from their locks in `folder`,
    which those that ended in order have removed; one that is held is no fault, but its holder's."""
    found = []
    for path in sorted(folder.glob(f"node-{node}-*.lock")):
        named = re.fullmatch(rf"node-({re.escape(node)}-(\d+)([{GENERATIONS}]))\.lock", path.name)
        if named is None:
            continue
        is_twin = int(named[2]) == place and named[3] != generation
        if is_twin or (place == 1 and int(named[2]) > places):
            found.append(named[1])
    return found
