"""A backend whose model thinks and calls a tool, and answers with the tool's result once it has it."""

import json
import re
from dataclasses import dataclass

from aiohttp import web

from tests.fakes.backend import USAGE, FakeBackend

PLACEHOLDER = re.compile(r"<[A-Z]+_[0-9]+_[a-z0-9]+>")


@dataclass
class ToolUser(FakeBackend):
    """`thought`: what it thinks before. It calls the first tool that it is offered, with what looks like a placeholder
    in the last message, and a JSON schema it fills with a city."""

    thought: str = "I should look."

    def message(self, body):
        last = body["messages"][-1]
        said = last["content"] if isinstance(last["content"], str) else last["content"][-1]["text"]
        thought = {"reasoning_content": self.thought} if self.thought else {}
        if last["role"] == "tool":
            return {"role": "assistant", "content": f"It says: {said}"}
        if body.get("response_format"):
            return {"role": "assistant", **thought, "content": '{"city": "Paris", "population": 2100000}'}
        if tools := body.get("tools"):
            about = PLACEHOLDER.search(said)
            arguments = json.dumps({"about": about[0] if about else said})
            function = {"name": tools[0]["function"]["name"], "arguments": arguments}
            call = {"id": "call_1", "type": "function", "function": function}
            return {"role": "assistant", **thought, "content": None, "tool_calls": [call]}
        return {"role": "assistant", **thought, "content": self.text(body)}

    def finish(self, message):
        return "tool_calls" if message.get("tool_calls") else "stop"

    def whole(self, body, chat):
        message = self.message(body)
        choice = {"index": 0, "message": message, "finish_reason": self.finish(message)}
        head = {"id": "x", "object": "chat.completion", "created": 1, "model": self.model}
        return {**head, "choices": [choice], "usage": self.usage}

    async def stream(self, request, body, chat):
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        message = self.message(body)
        deltas = [{"role": "assistant", "content": ""}]
        for field in ("reasoning_content", "content"):
            deltas += ({field: piece} for piece in self.cut(message.get(field) or ""))
        for call in message.get("tool_calls", ()):
            function = {**call["function"], "arguments": ""}
            deltas.append({"tool_calls": [{**call, "index": 0, "function": function}]})
            pieces = self.cut(call["function"]["arguments"])
            deltas += ({"tool_calls": [{"index": 0, "function": {"arguments": piece}}]} for piece in pieces)
        ended = [({}, self.finish(message))]
        for number, (delta, finish) in enumerate([*((each, None) for each in deltas), *ended]):
            if number == self.die_after:
                request.transport.close()
                return response
            await self.send(response, [{"index": 0, "delta": delta, "finish_reason": finish}])
        await self.send(response, [], usage=USAGE)
        await response.write(b"data: [DONE]\n\n")
        return response

    async def send(self, response, choices, **more):
        head = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": self.model}
        await response.write(b"data: " + json.dumps({**head, "choices": choices, **more}).encode() + b"\n\n")

    def cut(self, text):
        size = max(1, -(-len(text) // self.pieces))
        return [text[at : at + size] for at in range(0, len(text), size)]
