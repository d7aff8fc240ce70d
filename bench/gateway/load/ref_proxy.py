#!/usr/bin/env python3
"""Floor for a Python gateway: raw ASGI, one key look-up, JSON parse of the request, aiohttp upstream,
byte pass-through of the answer. No policy, log or redaction. Not a product: a reference point.

UPSTREAM=http://127.0.0.1:9100 API_KEY=sk-ref  uvicorn ref_proxy:app --port 9206 --no-access-log --log-level warning
"""

import asyncio
import hashlib
import json
import os

import aiohttp

try:
    import orjson

    loads = orjson.loads
except ImportError:
    loads = json.loads
UP = os.environ.get("UPSTREAM", "http://127.0.0.1:9100")
KEYS = {hashlib.sha256(os.environ.get("API_KEY", "sk-ref").encode()).digest(): "tenant-1"}
session = None


async def reply(send, status, body):
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", b"application/json")]})
    await send({"type": "http.response.body", "body": body})


async def app(scope, receive, send):
    global session
    if scope["type"] == "lifespan":
        while True:
            m = await receive()
            await send({"type": m["type"] + ".complete"})
            if m["type"] == "lifespan.shutdown":
                return
    if session is None:
        session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), auto_decompress=False)
    auth = next((v for k, v in scope["headers"] if k == b"authorization"), b"")
    if hashlib.sha256(auth[7:]).digest() not in KEYS:
        return await reply(send, 401, b'{"error":{"message":"bad key","type":"authentication_error"}}')
    body = b""
    while True:
        m = await receive()
        body += m.get("body", b"")
        if not m.get("more_body"):
            break
    stream = bool(loads(body).get("stream"))
    async with session.post(UP + scope["path"], data=body, headers={"content-type": "application/json"}) as r:
        await send(
            {
                "type": "http.response.start",
                "status": r.status,
                "headers": [(b"content-type", r.headers.get("content-type", "application/json").encode())],
            }
        )
        if stream:
            me = asyncio.current_task()
            watch = asyncio.ensure_future(receive())  # the next message is http.disconnect
            watch.add_done_callback(lambda t: t.cancelled() or me.cancel())
            try:
                async for chunk in r.content.iter_any():
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
            except asyncio.CancelledError:
                r.close()
                return
            finally:
                watch.cancel()
            await send({"type": "http.response.body", "body": b""})
        else:
            await send({"type": "http.response.body", "body": await r.read()})
