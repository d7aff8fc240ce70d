"""What to say of a URL that leads nowhere: which it was, and the nearest one that there is."""

import re
from collections.abc import Collection, Mapping, Sequence
from difflib import SequenceMatcher, get_close_matches
from types import MappingProxyType

from starlette.requests import Request
from starlette.routing import Route

MAX_SHOWN = 100
CUTOFF = 0.75
_PART = re.compile(r"(?:[A-Za-z][A-Za-z_.:-]*(?:[0-9]{1,2}[A-Za-z_.:-]*){0,3})?")
"""Part of a path: words with few digits in them, as in ``v1`` or ``images``; or nothing, between two slashes."""


NOT_OFFERED: Mapping[str, str] = MappingProxyType(
    {
        "/v1/assistants": "send the conversation to /v1/responses or /v1/chat/completions",
        "/v1/threads": "send the conversation to /v1/responses or /v1/chat/completions",
        "/v1/conversations": "continue with previous_response_id at /v1/responses, or send it with each call",
        "/v1/audio": "turn speech into text on the client, and send that to /v1/chat/completions",
        "/v1/images": "use an image service of your own; texts go to /v1/chat/completions",
        "/v1/videos": "use a video service of your own; texts go to /v1/chat/completions",
        "/v1/realtime": "stream /v1/chat/completions or /v1/responses",
        "/v1/moderations": "have a policy block or mask what must not pass; no classifier runs here",
        "/v1/fine_tuning": "train elsewhere, and serve the weights with a deployment",
        "/v1/fine-tunes": "train elsewhere, and serve the weights with a deployment",
        "/v1/uploads": "send a file whole to /v1/files",
        "/v1/vector_stores": "search in a store of your own with vectors of /v1/embeddings",
        "/v1/containers": "run tools on the client, and send their results with the next call",
        "/v1/evals": "run evaluations on the client, as batches at /v1/batches",
        "/v1/responses/compact": "send the items that the model is to see",
        "/v1/responses/input_tokens": "read the usage of an answer, or use /v1/messages/count_tokens",
        "/v1/complete": "use /v1/messages",
        "/api/pull": "ask the operator for a deployment of the model",
        "/api/push": "ask the operator for a deployment of the model",
        "/api/create": "ask the operator for a deployment of the model",
        "/api/copy": "give a model another name with `domicile model create`",
        "/api/delete": "ask the operator to end the deployment of the model",
        "/api/blobs": "ask the operator for a deployment of the model",
        "/api/embeddings": "use /api/embed",
    }
)
"""Routes of OpenAI's, Anthropic's and Ollama's APIs that are not offered, by their beginning, with what to use
instead."""


def unknown_url(method: str, path: str, routes: Sequence[str]) -> str:
    """One sentence. `routes`: the paths that exist, the most used first. Of `path`, at most MAX_SHOWN characters are
    named, and only parts that a URL of ours could consist of: an address or a number may be a person's."""
    if (instead := not_offered(path[:MAX_SHOWN])) is not None:
        name, fix = instead
        return f"{name} is not offered here; {fix}"
    nearest = nearest_route(path[:MAX_SHOWN], routes)
    fix = f"did you mean {nearest}?" if nearest else f"there are: {', '.join(routes)}"
    return f"There is nothing at {method} {_shown(path)}; {fix}"


def not_offered(path: str) -> tuple[str, str] | None:
    """The route of another API that `path` leads to, and what to use instead."""
    plain = "/" + "/".join(part for part in path.lower().split("/") if part)
    plain = plain.removeprefix("/v1")
    plain = plain if plain.startswith("/api/") else f"/v1{plain}"
    found = next((name for name in NOT_OFFERED if plain == name or plain.startswith(f"{name}/")), None)
    return None if found is None else (found, NOT_OFFERED[found])


def unknown_admin_url(method: str, path: str, templates: Sequence[str], others: str) -> str:
    """The same where routes have parameters, as ``/tenants/{tenant}/keys``; `others`: where all of them are named."""
    nearest = nearest_template(path[:MAX_SHOWN], templates)
    fix = f"did you mean {nearest}?" if nearest else f"the paths are in {others}"
    words = {word for template in templates for word in template.split("/") if not word.startswith("{")}
    return f"There is nothing at {method} {_shown_by(path, words)}; {fix}"


def nearest_template(path: str, templates: Sequence[str]) -> str | None:
    """The template whose words are nearest to those of `path`, each of which must be near; None where there is none."""
    parts = [part for part in path.lower().split("/") if part]
    best, likeness = None, 0.0
    for template in templates:
        words = template.strip("/").split("/")
        if len(words) != len(parts):
            continue
        fixed = [(word, part) for word, part in zip(words, parts, strict=True) if not word.startswith("{")]
        ratios = [SequenceMatcher(None, *pair).ratio() for pair in fixed]
        if min(ratios, default=0.0) >= CUTOFF and (mean := sum(ratios) / len(ratios)) > likeness:
            best, likeness = template, mean
    return best


def _shown_by(path: str, words: Collection[str]) -> str:
    """`path` with the parts that are near to one of `words`: what a parameter of this API holds is never repeated."""
    parts = path[:MAX_SHOWN].split("/")
    shown = (
        part if part in words or get_close_matches(part.lower(), words, n=1, cutoff=CUTOFF) else "…" for part in parts
    )
    return "/".join(shown) + ("…" if len(path) > MAX_SHOWN else "")


def _shown(path: str) -> str:
    parts = path[:MAX_SHOWN].split("/")
    return "/".join(part if _PART.fullmatch(part) else "…" for part in parts) + ("…" if len(path) > MAX_SHOWN else "")


def methods_here(request: Request) -> str:
    """The methods of all routes of the application at this URL (RFC 9110 §15.5.6), as the field ``Allow`` has them.
    Starlette names those of the first route."""
    path = request.url.path.removeprefix(request.scope.get("root_path", ""))
    found: set[str] = set()
    for route in request.app.routes:
        if isinstance(route, Route) and route.methods and route.path_regex.match(path):
            found |= route.methods
    return ", ".join(sorted(found))


def nearest_route(path: str, routes: Sequence[str]) -> str | None:
    """The route that `path` most likely stands for: but for doubled or missing parts, slashes and case; else by its
    letters. None where nothing is near."""
    plain = "/" + "/".join(part for part in path.lower().split("/") if part)
    plain = re.sub(r"^(/v1)+(?=/|$)", "", plain)
    for candidate in (f"/v1{plain}", plain):
        if candidate in routes:
            return candidate
    if (part := _containing(plain, routes)) is not None:
        return part
    close = get_close_matches(f"/v1{plain}", routes, n=1, cutoff=CUTOFF)
    return close[0] if close else None


def _containing(plain: str, routes: Sequence[str]) -> str | None:
    """The longest route that `plain` ends in, behind another server's prefix (Azure's
    ``/openai/deployments/D/chat/completions``, Gemini's ``/v1beta/openai/chat/completions``), or begins with."""
    by_length = sorted(routes, key=len, reverse=True)
    ends = (route for route in by_length if plain.endswith(route.removeprefix("/v1")))
    begins = (route for route in by_length if f"/v1{plain}".startswith(f"{route}/"))
    return next(ends, None) or next(begins, None)
