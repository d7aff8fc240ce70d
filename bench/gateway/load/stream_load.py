#!/usr/bin/env python3
"""Closed-loop streaming load client (bare asyncio sockets, keep-alive).

stream_load.py BASE_URL API_KEY MODEL CONCURRENCY SECONDS  ->  one JSON line:
streams/s, SSE data events/s, TTFT and whole-stream p50/p99 in ms, errors.
BASE_URL ends in /v1, plain http only. MSG="mode:paced" asks mock_upstream.py for paced chunks.
EXTRA_HEADERS="A: b|C: d" adds headers.
"""

import asyncio
import json
import os
import sys
import time
from urllib.parse import urlsplit

base, key, model, conc, secs = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), float(sys.argv[5])
u = urlsplit(base)
assert u.scheme == "http", "plain http only"
body = json.dumps(
    {
        "model": model,
        "stream": True,
        "stream_options": {"include_usage": True},
        "messages": [{"role": "user", "content": os.environ.get("MSG", "Say something of fifty tokens.")}],
    }
).encode()
extra = "".join(h.strip() + "\r\n" for h in os.environ.get("EXTRA_HEADERS", "").split("|") if h.strip())
REQ = (
    f"POST {u.path.rstrip('/')}/chat/completions HTTP/1.1\r\nhost: {u.netloc}\r\n"
    f"authorization: Bearer {key}\r\ncontent-type: application/json\r\naccept: text/event-stream\r\n"
    f"{extra}content-length: {len(body)}\r\n\r\n"
).encode() + body
ttft, total, events, errors = [], [], 0, 0
first_error = None


async def worker(stop):
    global events, errors, first_error
    r = w = None
    while time.perf_counter() < stop:
        try:
            if w is None:
                r, w = await asyncio.open_connection(u.hostname, u.port or 80)
            t0 = time.perf_counter()
            w.write(REQ)
            buf, seen_first, done, closed = b"", None, False, False
            n = 0
            while True:
                d = await r.read(65536)
                if not d:
                    closed = True
                    break
                if seen_first is None and (b"data:" in d or b"data:" in buf + d):
                    seen_first = time.perf_counter()
                buf += d
                if b"[DONE]" in buf[-64:] and buf.endswith(b"0\r\n\r\n"):
                    done = True
                    break
                if not buf.startswith(b"HTTP/1.1 200") and len(buf) > 12:
                    break
            if b"[DONE]" not in buf or not buf.startswith(b"HTTP/1.1 200"):
                errors += 1
                first_error = first_error or buf[:300].decode("latin1")
                closed = True
            else:
                t1 = time.perf_counter()
                n = buf.count(b"data: {") + buf.count(b"data:{")
                events += n
                ttft.append(seen_first - t0)
                total.append(t1 - t0)
            if closed or b"onnection: close" in buf[:600]:
                w.close()
                w = None
        except (OSError, asyncio.IncompleteReadError) as e:
            errors += 1
            first_error = first_error or repr(e)
            w = None
            await asyncio.sleep(0.05)


def q(v, p):
    return round(sorted(v)[min(len(v) - 1, int(len(v) * p))] * 1000, 3) if v else None


async def main():
    t0 = time.perf_counter()
    await asyncio.gather(*(worker(t0 + secs) for _ in range(conc)))
    dt = time.perf_counter() - t0
    print(
        json.dumps(
            {
                "kind": "stream",
                "model": model,
                "conc": conc,
                "streams_s": round(len(total) / dt, 1),
                "events_s": round(events / dt),
                "events_per_stream": round(events / max(1, len(total)), 1),
                "ttft_p50": q(ttft, 0.5),
                "ttft_p99": q(ttft, 0.99),
                "total_p50": q(total, 0.5),
                "total_p99": q(total, 0.99),
                "n": len(total),
                "errors": errors,
                "first_error": first_error,
            }
        )
    )


try:
    import uvloop

    uvloop.install()
except ImportError:
    pass
asyncio.run(main())
