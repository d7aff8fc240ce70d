"""What to say of a URL that leads nowhere: which it was, and the nearest one that there is."""

import re
from collections.abc import Sequence
from difflib import get_close_matches

MAX_SHOWN = 100
CUTOFF = 0.75
_PART = re.compile(r"(?:[A-Za-z][A-Za-z_.:-]*(?:[0-9]{1,2}[A-Za-z_.:-]*){0,3})?")
"""Of a path: words with few digits in them, as in ``v1`` or ``images``; or nothing, between two slashes."""


def unknown_url(method: str, path: str, routes: Sequence[str]) -> str:
    """One sentence. `routes`: the paths that exist, the most used first. Of `path`, at most MAX_SHOWN characters are
    named, and only parts that a URL of ours could consist of: an address or a number may be a person's."""
    parts = path[:MAX_SHOWN].split("/")
    shown = "/".join(part if _PART.fullmatch(part) else "…" for part in parts) + ("…" if len(path) > MAX_SHOWN else "")
    nearest = nearest_route(path[:MAX_SHOWN], routes)
    fix = f"did you mean {nearest}?" if nearest else f"there are: {', '.join(routes)}"
    return f"There is nothing at {method} {shown}; {fix}"


def nearest_route(path: str, routes: Sequence[str]) -> str | None:
    """The route that `path` most likely stands for: but for doubled or missing parts, slashes and case; else by its
    letters. None where nothing is near."""
    plain = "/" + "/".join(part for part in path.lower().split("/") if part)
    plain = re.sub(r"^(/v1)+(?=/|$)", "", plain)
    for candidate in (f"/v1{plain}", plain):
        if candidate in routes:
            return candidate
    close = get_close_matches(f"/v1{plain}", routes, n=1, cutoff=CUTOFF)
    return close[0] if close else None
