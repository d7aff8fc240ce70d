#!/usr/bin/env python3
"""CPU spent by a gateway per request and per streamed event: the one figure a busy machine blurs least.

cpu_cost.py NAME BASE_URL API_KEY MODEL PID [N_PLAIN=600] [N_STREAM=60] [CONC=8]
EXTRA_HEADERS="A: b|C: d"   API=chat|responses|messages
Sends a fixed number of requests, reads the threads' run time (schedstat, ns) of PID's process tree before
and after.  One JSON line: cpu_us per plain request, per stream, per stream event.
"""

import asyncio
import json
import os
import sys
from urllib.parse import urlsplit

name, base, key, model, pid = sys.argv[1:6]
n_plain, n_stream, conc = (int(a) for a in (sys.argv[6:9] + ["600", "60", "8"][len(sys.argv[6:9]) :]))
u = urlsplit(base)
extra = "".join(h.strip() + "\r\n" for h in os.environ.get("EXTRA_HEADERS", "").split("|") if h.strip())


def cpu():
    kids = {}
    for p in filter(str.isdigit, os.listdir("/proc")):
        try:
            kids.setdefault(int(open(f"/proc/{p}/stat").read().rsplit(")", 1)[1].split()[1]), []).append(int(p))
        except OSError:
            pass
    todo, ns = [int(pid)], 0
    while todo:
        p = todo.pop()
        todo += kids.get(p, [])
        try:
            for t in os.listdir(f"/proc/{p}/task"):
                ns += int(open(f"/proc/{p}/task/{t}/schedstat").read().split()[0])
        except OSError:
            pass
    return ns / 1000


QUESTION = [{"role": "user", "content": "Say something of fifty tokens."}]
APIS = {
    "chat": ("/chat/completions", {"messages": QUESTION}),
    "responses": ("/responses", {"input": QUESTION}),
    "messages": ("/messages", {"max_tokens": 64, "messages": QUESTION}),
}


def req(stream):
    path, b = APIS[os.environ.get("API", "chat")]
    b = {"model": model, **b}
    if stream:
        b.update(stream=True, **({"stream_options": {"include_usage": True}} if path == "/chat/completions" else {}))
    b = json.dumps(b).encode()
    return (
        f"POST {u.path.rstrip('/')}{path} HTTP/1.1\r\nhost: {u.netloc}\r\nauthorization: Bearer {key}\r\n"
        f"content-type: application/json\r\n{extra}content-length: {len(b)}\r\n\r\n"
    ).encode() + b


async def one(rw, r):
    if rw[0] is None:
        rw[0], rw[1] = await asyncio.open_connection(u.hostname, u.port)
    rw[1].write(r)
    head = await rw[0].readuntil(b"\r\n\r\n")
    low = head.lower()
    if b"content-length:" in low:
        n = int(low.split(b"content-length:")[1].split(b"\r\n")[0])
        body = await rw[0].readexactly(n)
    else:
        body = b""
        while not body.endswith(b"0\r\n\r\n"):
            d = await rw[0].read(65536)
            if not d:
                break
            body += d
    if b"connection: close" in low or not body:
        rw[1].close()
        rw[0] = rw[1] = None
    return head.startswith(b"HTTP/1.1 200"), body.count(b"data: {") + body.count(b"data:{")


async def run(r, n):
    left, bad, ev = [n], 0, 0

    async def w():
        nonlocal bad, ev
        rw = [None, None]
        while left[0] > 0:
            left[0] -= 1
            ok, e = await one(rw, r)
            bad += not ok
            ev += e

    a = cpu()
    await asyncio.gather(*(w() for _ in range(conc)))
    await asyncio.sleep(0.3)
    return cpu() - a, bad, ev


async def main():
    await run(req(False), 50)
    await run(req(True), 5)
    p, b1, _ = await run(req(False), n_plain)
    s, b2, ev = await run(req(True), n_stream)
    print(
        json.dumps(
            {
                "name": name,
                "kind": "cpu",
                "plain_us": round(p / n_plain, 1),
                "stream_us": round(s / n_stream, 1),
                "event_us": round(s / max(1, ev), 2),
                "bad": b1 + b2,
            }
        )
    )


asyncio.run(main())
