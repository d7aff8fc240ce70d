"""Events of another API taken apart, and chat chunks to make them from."""

import json


def events(raw):
    """Name and parsed data of each event."""
    found = []
    for block in raw.decode().split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.split("\n") if line and not line.startswith(":"))
        if lines:
            found.append((lines["event"], json.loads(lines["data"])))
    return found


def chunk(delta, finish=None, **more):
    return {
        "object": "chat.completion.chunk",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish, **more}],
    }


def tool(index, identifier=None, name=None, arguments=None):
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    return {"tool_calls": [{"index": index, **({"id": identifier} if identifier else {}), "function": function}]}
