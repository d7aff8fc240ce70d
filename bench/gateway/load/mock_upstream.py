#!/usr/bin/env python3
"""Fast OpenAI-shaped mock upstream on a bare asyncio protocol (uvloop if present).

POST /v1/chat/completions   fixed ~50-token answer, or 50 SSE content chunks
GET  /v1/models, /health    enough for routers that probe their workers
GET  /stats, POST /reset    counters: requests, streams begun/finished/cut off by the peer
GET  /last                  headers and body of the last completion request (for probes)

What the upstream does is chosen by the last user message ("mode:paced", "mode:utf8 die", ...), so one
model name is enough and any gateway can be tested; the words may be joined ("mode:paced,die"):
  paced      one chunk per MOCK_CHUNK_MS (default 10 ms)
  utf8       multi-byte text, every SSE event split in the middle of a character
  die        streaming: connection dropped after 10 chunks (no [DONE]); else dropped at once
  err429 / err500       that status, with an OpenAI error body
  tool       streaming tool-call deltas
  large      a whole answer of some 8 MB, most of it log probabilities
  events     streaming: a megabyte of very small events of texts and thoughts in turn, as fast as they are taken
  errmid     an SSE `data: {"error": ...}` event after 10 chunks
"""

import asyncio
import json
import os
import sys
from functools import cache

CHUNK_S = float(os.environ.get("MOCK_CHUNK_MS", "10")) / 1000
WORDS = (
    "The gateway answered with a fixed text that is about fifty tokens long so that each "
    "run moves the same bytes and the numbers can be compared between products without "
    "any noise from a real model which would make the whole thing slower and less exact "
    "for us all here"
).split()
USAGE = {"prompt_tokens": 12, "completion_tokens": 50, "total_tokens": 62}
MODELS = ["mock"]
STATS = {"requests": 0, "streams_begun": 0, "streams_done": 0, "streams_cut": 0, "chunks_sent": 0}
LAST = {"headers": {}, "body": None}


def dumps(o):
    return json.dumps(o, ensure_ascii=False, separators=(",", ":"))


def chunk(delta, finish=None, usage=False):
    o = {
        "id": "chatcmpl-mock",
        "object": "chat.completion.chunk",
        "created": 1700000000,
        "model": "mock",
        "choices": [] if usage else [{"index": 0, "delta": delta, "finish_reason": finish}],
    }
    if usage:
        o["usage"] = USAGE
    return ("data: " + dumps(o) + "\n\n").encode()


def answer(model, text):
    return dumps(
        {
            "id": "chatcmpl-mock",
            "object": "chat.completion",
            "created": 1700000000,
            "model": "mock",
            "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}],
            "usage": USAGE,
        }
    ).encode()


PLAIN = answer("mock", " ".join(WORDS))


@cache
def large():
    """A whole answer of some 8 MB: 100 kB of text, the rest log probabilities of 100,000 tokens."""
    said = json.loads(answer("mock", "The answer is long. " * 5000))
    said["choices"][0]["logprobs"] = {
        "content": [{"token": f" t{n}", "logprob": -0.5, "bytes": [n % 256]} for n in range(160_000)]
    }
    body = dumps(said).encode()
    return head("200 OK", "application/json", len(body)) + body


FIRST = chunk({"role": "assistant", "content": ""})
BODY = [chunk({"content": (w if i == 0 else " " + w)}) for i, w in enumerate(WORDS)]
assert len(WORDS) == 50
THOUGHT = b'data: {"choices":[{"index":0,"delta":{"reasoning":"b"}}]}\n\n'
SMALL = [(chunk({"content": "1"}) + THOUGHT) * 100] * 60
UTF8 = [chunk({"content": c}) for c in ["Größe ", "naïve ", "日本語 ", "🙂👩‍💻 ", "Ωμέγα "] * 10]
TOOLS = [
    chunk(
        {
            "tool_calls": [
                {"index": 0, "id": "call_1", "type": "function", "function": {"name": "lookup", "arguments": ""}}
            ]
        }
    )
] + [
    chunk({"tool_calls": [{"index": 0, "function": {"arguments": a}}]})
    for a in ['{"em', 'ail":"anna', ".schmidt@", "example.", 'org","q":"Zür', 'ich"}']
]
LASTC, USAGEC, DONE = chunk({}, "stop"), chunk(None, usage=True), b"data: [DONE]\n\n"


def head(status, ctype, length=None, extra=""):
    s = f"HTTP/1.1 {status}\r\ncontent-type: {ctype}\r\n{extra}"
    s += f"content-length: {length}\r\n\r\n" if length is not None else "transfer-encoding: chunked\r\n\r\n"
    return s.encode()


PLAIN_RESP = head("200 OK", "application/json", len(PLAIN)) + PLAIN
SSE_HEAD = head("200 OK", "text/event-stream", extra="cache-control: no-cache\r\n")


def http_chunk(b):
    return b"%x\r\n%s\r\n" % (len(b), b)


class Mock(asyncio.Protocol):
    __slots__ = ("t", "buf", "task", "closed", "ev")

    def connection_made(self, t):
        self.t, self.buf, self.task, self.closed = t, b"", None, False

    def connection_lost(self, exc):
        self.closed = True

    def data_received(self, data):
        self.buf += data
        while self.buf and self.task is None:
            end = self.buf.find(b"\r\n\r\n")
            if end < 0:
                return
            lines = self.buf[:end].decode("latin1").split("\r\n")
            hdr = {}
            for ln in lines[1:]:
                k, _, v = ln.partition(":")
                hdr[k.lower()] = v.strip()
            pos = end + 4
            if hdr.get("expect", "").lower() == "100-continue" and len(self.buf) == pos:
                self.t.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            if "chunked" in hdr.get("transfer-encoding", "").lower():
                body = b""
                while True:
                    e = self.buf.find(b"\r\n", pos)
                    if e < 0:
                        return
                    n = int(self.buf[pos:e].split(b";")[0], 16)
                    if len(self.buf) < e + 2 + n + 2:
                        return
                    body += self.buf[e + 2 : e + 2 + n]
                    pos = e + 2 + n + 2
                    if n == 0:
                        break
            else:
                n = int(hdr.get("content-length") or 0)
                if len(self.buf) < pos + n:
                    return
                body, pos = self.buf[pos : pos + n], pos + n
            self.buf = self.buf[pos:]
            method, path, _ = lines[0].split(" ", 2)
            self.handle(method, path.split("?")[0], hdr, body)

    def send_json(self, obj, status="200 OK", extra=""):
        b = dumps(obj).encode()
        self.t.write(head(status, "application/json", len(b), extra) + b)

    def handle(self, method, path, hdr, body):
        if method == "POST" and path.endswith("/completions"):
            STATS["requests"] += 1
            LAST["headers"], LAST["body"] = hdr, body
            req = json.loads(body)
            model = ""
            if req.get("messages"):
                last = req["messages"][-1].get("content") or ""
                if isinstance(last, list):
                    last = "".join(x.get("text") or "" for x in last if isinstance(x, dict))
                if last.startswith("mode:"):
                    model = last
            if "err429" in model:
                return self.send_json(
                    {
                        "error": {
                            "message": "slow down",
                            "type": "rate_limit_error",
                            "param": None,
                            "code": "rate_limited",
                        }
                    },
                    "429 Too Many Requests",
                    "retry-after: 7\r\n",
                )
            if "err500" in model:
                return self.send_json(
                    {"error": {"message": "boom", "type": "server_error", "param": None, "code": None}},
                    "500 Internal Server Error",
                )
            if req.get("stream"):
                usage = bool((req.get("stream_options") or {}).get("include_usage"))
                self.task = asyncio.ensure_future(self.stream(model, usage))
            elif "die" in model:
                self.t.close()
            else:
                self.t.write(large() if "large" in model else PLAIN_RESP)
        elif path == "/stats":
            self.send_json(STATS)
        elif path == "/reset":
            for k in STATS:
                STATS[k] = 0
            self.send_json(STATS)
        elif path == "/last":
            self.send_json({"headers": LAST["headers"], "body": json.loads(LAST["body"]) if LAST["body"] else None})
        elif path.endswith("/models"):
            self.send_json(
                {
                    "object": "list",
                    "data": [{"id": i, "object": "model", "created": 1700000000, "owned_by": "mock"} for i in MODELS],
                }
            )
        else:
            self.send_json(
                {
                    "status": "ok",
                    "model_path": "mock",
                    "served_model_name": "mock",
                    "model_id": "mock",
                    "is_generation": True,
                }
            )

    async def stream(self, model, usage):
        STATS["streams_begun"] += 1
        paced, utf8 = "paced" in model, "utf8" in model
        parts = SMALL if "events" in model else TOOLS if "tool" in model else UTF8 if utf8 else BODY
        w = self.t.write
        w(SSE_HEAD)
        n = 0
        for b in (FIRST, *parts, LASTC, *((USAGEC,) if usage else ()), DONE):
            if self.closed:
                STATS["streams_cut"] += 1
                return
            if n == 10 and "die" in model:
                self.t.close()
                return
            if n == 10 and "errmid" in model:
                w(http_chunk(b'data: {"error":{"message":"engine died","type":"server_error","code":500}}\n\n'))
                b = DONE
            if utf8:
                cut = next((i + 1 for i, c in enumerate(b) if c > 0x7F), len(b) // 2)
                w(http_chunk(b[:cut]))
                await asyncio.sleep(0.001)
                w(http_chunk(b[cut:]))
            else:
                w(http_chunk(b))
            n += 1
            STATS["chunks_sent"] += 1
            if n > 10 and "errmid" in model:
                break
            await asyncio.sleep(CHUNK_S if paced else 0)
        w(b"0\r\n\r\n")
        STATS["streams_done"] += 1
        self.task = None
        if self.buf:
            self.data_received(b"")


async def main(port):
    srv = await asyncio.get_running_loop().create_server(Mock, "127.0.0.1", port, backlog=1024)
    print(f"mock upstream on 127.0.0.1:{port}", flush=True)
    await srv.serve_forever()


if __name__ == "__main__":
    try:
        import uvloop

        uvloop.install()
    except ImportError:
        pass
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 9100))
