#!/usr/bin/env python3
"""Behaviour probe of one gateway in front of mock_upstream.py.

probe.py NAME BASE_URL API_KEY [MODEL=mock] [MOCK=http://127.0.0.1:9100]   EXTRA_HEADERS="A: b|C: d"
One JSON line: what came back for each case.
"""

import http.client
import json
import os
import socket
import sys
import time
from urllib.parse import urlsplit

name, base, key = sys.argv[1:4]
MODEL = sys.argv[4] if len(sys.argv) > 4 else "mock"
mock = urlsplit(sys.argv[5] if len(sys.argv) > 5 else "http://127.0.0.1:9100")
u = urlsplit(base)
H = {"authorization": "Bearer " + key, "content-type": "application/json"}
for h in os.environ.get("EXTRA_HEADERS", "").split("|"):
    if ":" in h:
        k, v = h.split(":", 1)
        H[k.strip()] = v.strip()


def B(mode="", **kw):
    return {"model": MODEL, "messages": [{"role": "user", "content": f"mode:{mode}" if mode else "hi"}], **kw}


def post(body, headers=None, path="/chat/completions", raw=None, timeout=15):
    c = http.client.HTTPConnection(u.hostname, u.port, timeout=timeout)
    c.request(
        "POST",
        u.path.rstrip("/") + path,
        raw if raw is not None else json.dumps(body).encode(),
        {**H, **(headers or {})},
    )
    r = c.getresponse()
    try:
        data = r.read()
    except (http.client.IncompleteRead, ConnectionError) as e:
        data = getattr(e, "partial", b"")
        return r, data, "cut:" + type(e).__name__
    return r, data, "ok"


def ev(data):
    out = []
    for blk in data.decode("utf-8", "replace").replace("\r\n", "\n").split("\n\n"):
        for ln in blk.split("\n"):
            if ln.startswith("data:"):
                d = ln[5:].strip()
                try:
                    out.append(d if d == "[DONE]" else json.loads(d))
                except ValueError:
                    out.append({"_bad": d[:80]})
    return out


def mock_get(path, method="GET"):
    c = http.client.HTTPConnection(mock.hostname, mock.port, timeout=5)
    c.request(method, path, b"" if method == "POST" else None)
    return json.loads(c.getresponse().read())


def S(mode="", **kw):
    return B(mode, stream=True, **kw)


R = {"name": name}


def case(k):
    def deco(f):
        try:
            R[k] = f()
        except Exception as e:  # noqa: BLE001  (a probe reports whatever happened)
            R[k] = f"EXC {type(e).__name__}: {e}"[:120]

    return deco


@case("usage_when_asked")
def _():
    e = ev(post(S("", stream_options={"include_usage": True}))[1])
    us = [x for x in e if isinstance(x, dict) and x.get("usage")]
    return {
        "events": len(e),
        "usage_events": len(us),
        "last_choices_empty": bool(us) and us[-1].get("choices") == [],
        "done": e[-1:] == ["[DONE]"],
        "right": bool(us) and us[-1]["usage"].get("total_tokens") == 62,
    }


@case("usage_when_not_asked")
def _():
    e = ev(post(S())[1])
    up = mock_get("/last")["body"]
    return {
        "client_sees_usage": any(isinstance(x, dict) and x.get("usage") for x in e),
        "upstream_asked": bool((up.get("stream_options") or {}).get("include_usage")),
    }


@case("content_type")
def _():
    return post(S())[0].getheader("content-type")


@case("utf8_split")
def _():
    r, d, _ = post(S("utf8"))
    t = "".join(
        (x["choices"][0]["delta"].get("content") or "") for x in ev(d) if isinstance(x, dict) and x.get("choices")
    )
    return "ok" if t == "".join(["Größe ", "naïve ", "日本語 ", "🙂👩‍💻 ", "Ωμέγα "] * 10) else f"BAD {t[:60]!r}"


@case("tool_call_deltas")
def _():
    e = ev(post(S("tool"))[1])
    n, args = 0, ""
    for x in e:
        if isinstance(x, dict) and x.get("choices"):
            for tc in x["choices"][0]["delta"].get("tool_calls") or []:
                n += 1
                args += (tc.get("function") or {}).get("arguments") or ""
    return {"deltas": n, "ok": args == '{"email":"anna.schmidt@example.org","q":"Zürich"}'}


@case("upstream_dies_mid_stream")
def _():
    mock_get("/reset", "POST")
    r, d, end = post(S("paced,die"))
    e = ev(d)
    t = sum(1 for x in e if isinstance(x, dict) and x.get("choices") and x["choices"][0]["delta"].get("content"))
    return {
        "http": r.status,
        "content_events": t,
        "end": end,
        "done_sent": "[DONE]" in e,
        "error_event": any(isinstance(x, dict) and ("error" in x) for x in e),
        "upstream_calls": mock_get("/stats")["requests"],
    }


@case("error_event_mid_stream")
def _():
    r, d, end = post(S("paced,errmid"))
    e = ev(d)
    return {
        "http": r.status,
        "error_event": any(isinstance(x, dict) and x.get("error") for x in e),
        "done_sent": "[DONE]" in e,
        "end": end,
    }


@case("upstream_429")
def _():
    mock_get("/reset", "POST")
    r, d, _ = post(B("err429"))
    return {
        "http": r.status,
        "retry_after": r.getheader("retry-after"),
        "upstream_calls": mock_get("/stats")["requests"],
        "body": d[:110].decode("utf-8", "replace"),
    }


@case("upstream_500")
def _():
    mock_get("/reset", "POST")
    r, d, _ = post(B("err500"))
    return {"http": r.status, "upstream_calls": mock_get("/stats")["requests"]}


@case("stream_upstream_429")
def _():
    r, d, _ = post(S("err429"))
    return {"http": r.status, "ctype": r.getheader("content-type")}


@case("bad_key")
def _():
    r, d, _ = post(B(), {"authorization": "Bearer sk-wrong"})
    return r.status


@case("bad_json")
def _():
    r, d, _ = post(None, raw=b'{"model": "mock", "messages": [')
    return {"http": r.status, "openai_error": b'"error"' in d}


@case("unknown_model")
def _():
    r, d, _ = post({**B(), "model": MODEL + "-no-such"})
    return r.status


@case("headers_upstream")
def _():
    post(B(), {"cookie": "session=SECRET", "x-internal-token": "SECRET2", "x-forwarded-for": "10.1.2.3"})
    h = mock_get("/last")["headers"]
    return {
        "client_key_leaks": key in h.get("authorization", "") and key not in ("none", "sk-mock"),
        "cookie": "cookie" in h,
        "x-internal-token": "x-internal-token" in h,
        "x-forwarded-for": h.get("x-forwarded-for"),
        "all": sorted(h),
    }


@case("unknown_param_forwarded")
def _():
    r, d, _ = post(B("", top_k=5, guided_json={"type": "object"}, chat_template_kwargs={"x": 1}))
    b = mock_get("/last")["body"] if r.status == 200 else {}
    return {"http": r.status, "kept": [k for k in ("top_k", "guided_json", "chat_template_kwargs") if k in b]}


def disconnect(mode):
    mock_get("/reset", "POST")
    s = socket.create_connection((u.hostname, u.port), timeout=10)
    b = json.dumps(S(mode)).encode()
    hd = "".join(f"{k}: {v}\r\n" for k, v in H.items())
    s.sendall(
        f"POST {u.path.rstrip('/')}/chat/completions HTTP/1.1\r\nhost: {u.netloc}\r\n{hd}"
        f"content-length: {len(b)}\r\n\r\n".encode()
        + b
    )
    got = b""
    while got.count(b"data:") < 8:
        d = s.recv(4096)
        if not d:
            break
        got += d
    s.close()
    time.sleep(1.5)
    st = mock_get("/stats")
    return {"upstream_cut": st["streams_cut"] == 1, "chunks_sent": st["chunks_sent"]}


@case("client_disconnect_mid_stream")
def _():
    return disconnect("paced")


@case("stream_is_incremental")
def _():
    c = http.client.HTTPConnection(u.hostname, u.port, timeout=15)
    c.request("POST", u.path.rstrip("/") + "/chat/completions", json.dumps(S("paced")).encode(), H)
    r = c.getresponse()
    t0 = time.time()
    first, n = None, 0
    while True:
        d = r.read1(65536)
        if not d:
            break
        n += 1
        first = first or time.time()
    return {"reads": n, "spread_ms": round((time.time() - first) * 1000)}


@case("models")
def _():
    c = http.client.HTTPConnection(u.hostname, u.port, timeout=10)
    c.request("GET", u.path.rstrip("/") + "/models", headers=H)
    r = c.getresponse()
    d = r.read()
    return {"http": r.status, "n": len(json.loads(d).get("data", [])) if r.status == 200 else None}


@case("big_prompt_1MB")
def _():
    r, d, _ = post({**B(), "messages": [{"role": "user", "content": "x" * 1_000_000}]}, timeout=30)
    return r.status


print(json.dumps(R, ensure_ascii=False))
