"""The worst stall that one tenant's attack causes another one: each attack in turn, on a whole gateway on loopback.

    python bench/gateway/stalls.py --out bench/results/stalls-2026-11-29.json

The gateway runs in a process of its own, in front of a mock that answers at once. One tenant sends an attack over and
over, from two connections of a third process, so that what it takes to send is not measured; another asks for
`GET /v1/models` (authentication, no backend) every 5 ms and makes a short call every 50 ms. The figures are the longest
such answer under the attack, and the longest of a quiet gateway before it; the difference is the stall. On a machine
that does other work both are larger, which is why both are reported, and beside them two figures that depend on that
less: the CPU time of each step that holds the gateway's interpreter, and `net_worst_ms`, the longest answer without the
time for which the gateway's loop, or the process that asks, was ready to run and waited for a core (Linux's schedstat).
`loop_worst_ms` is the CPU time that the gateway's loop took during such an answer, of which a busy machine makes little
more. A third asks for `GET /healthz` on a connection of its own every 20 ms: `fresh_worst_ms`, from its beginning.

Attacks by the number and the pace of connections are those of `load/floods.py`; those over TLS have a gateway that
speaks it.
"""

import argparse
import asyncio
import gc
import json
import multiprocessing
import os
import pickle
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import aiohttp

HERE = Path(__file__).parent
sys.path[0] = str(Path(__file__).parents[2])  # not bench/, whose audit.py would be taken for the package
sys.path.append(str(HERE))

from run import MOCK_PORT, POLICY, cpu_model, process  # noqa: E402

from bench.gateway.load.floods import FLOODS  # noqa: E402
from gateway.content.inspection import INLINE_BYTES, INLINE_PARSE_BYTES  # noqa: E402
from gateway.content.inspection_process import framed  # noqa: E402
from gateway.errors import BodyTooComplex  # noqa: E402
from gateway.installation.installation import Installation  # noqa: E402
from gateway.openai import finite_json  # noqa: E402
from gateway.openai.bounds import BOUNDS, check_shape  # noqa: E402
from gateway.openai.endpoints import CHAT, COMPLETIONS  # noqa: E402
from regions.identity.identity import BackendIdentity  # noqa: E402

PORT, TLS_PORT = 9402, 9404
BUDGET_MS = 50
KEEPING = POLICY + 'retention: {content: "encrypted, 1d"}\n'
UNREDACTED = "policy: open\nversion: 1\nresidency: {process_in: EEA, store_in: EEA}\n"


def chat(messages: bytes) -> bytes:
    return b'{"model":"mock","messages":[' + messages + b"]}"


def repeated(item: bytes, count: int) -> bytes:
    return chat(b",".join([item] * count))


def said(text: str, **more: object) -> bytes:
    body = chat(json.dumps({"role": "user", "content": text}).encode())
    return body[:-1] + b"," + json.dumps(more).encode()[1:] if more else body


def holding(value: bytes) -> bytes:
    """A chat with `value` in a field that nobody knows."""
    return said("x")[:-1] + b',"x":' + value + b"}"


def numbers(number: bytes) -> bytes:
    """As many as fit into 8 MB, and into the number of values."""
    return holding(b"[" + b",".join([number] * min(299_000, 7_900_000 // (len(number) + 1))) + b"]")


RULES = "policy: p\nversion: 1\nresidency: {process_in: EEA, store_in: EEA}\nrules:\n" + "".join(
    f"  - {{name: r{n}, when: {{models: [m{n}]}}, process_in: [FR]}}\n" for n in range(4000)
)
ATTACKS: dict[str, bytes] = {
    "200,000 messages (6 MB)": repeated(b'{"role":"user","content":"x"}', 200_000),
    "700,000 invalid messages (7.7 MB)": repeated(b'{"role":1}', 700_000),
    "2,600,000 empty objects (7.8 MB)": b'{"model":"mock","x":[' + b",".join([b"{}"] * 2_600_000) + b"]}",
    "4,096 messages, the most": repeated(b'{"role":"user","content":"x"}', 4096),
    "4,096 invalid messages": repeated(b'{"role":1}', 4096),
    "3,300 messages of parts": repeated(b'{"role":"user","content":[{"type":"text","text":"x"}]}', 3300),
    "90,000 biases": b'{"model":"mock","messages":[{"role":"user","content":"x"}],"logit_bias":'
    + json.dumps({str(n): "x" for n in range(90_000)}).encode() + b"}",
    "a million token ids": b'{"model":"mock","messages":[' + b",".join([b"1"] * 1_000_000) + b"]}",
    "300,000 token ids of a prompt": b'{"model":"mock","prompt":[' + b",".join([b"12345"] * 300_000) + b"]}",
    "300,000 floats in an unknown field": chat(b'{"role":"user","content":"x"}')[:-1]
    + b',"x":[' + b",".join([b"0.123456789"] * 299_990) + b"]}",
    "100,000 names of members": chat(b'{"role":"user","content":"x"}')[:-1]
    + b',"x":' + json.dumps({f"name{n}": n for n in range(99_000)}).encode() + b"}",
    "40,000 names of members, the most": holding(json.dumps({f"name{n}": n for n in range(39_000)}).encode()),
    "99,000 strings": holding(json.dumps([f"text {n}" for n in range(99_000)]).encode()),
    "numbers of 20 digits": numbers(b"7" * 20),
    "numbers of 4,000 digits": numbers(b"7" * 4000),
    "300,000 numbers of 8 digits": numbers(b"7" * 8),
    "4 MB of escapes, the most": holding(b'"' + b"\\n" * 1_990_000 + b'"'),
    "8 MB of escapes": holding(b'"' + b"\\n" * 3_900_000 + b'"'),
    "400,000 stop strings": said("x")[:-1] + b',"stop":[' + b",".join([b'""'] * 400_000) + b"]}",
    "90,000 stop strings": said("x")[:-1] + b',"stop":[' + b",".join([b'"x"'] * 90_000) + b"]}",
    "512 tools of deep schemas": chat(b'{"role":"user","content":"x"}')[:-1]
    + b',"tools":' + json.dumps([{"type": "function", "function": {"parameters": {"a": [{}] * 16}}}] * 512).encode()
    + b"}",
    "3.9 MB of text": said("hello there my friend " * 177_000),
    "600 kB of telephone numbers": said("+49 30 1234567 " * 40_000),
    "8 kB of telephone numbers": said("+49 30 1234567 " * 540),
    "7 MB of brackets in a text": said('{"a": [1, 2]} ' * 250_000),
    "8 MB, not JSON": b"[" * 8_000_000,
    "20 MB, over the limit": b"x" * 20_000_000,
}  # fmt: skip
READ = 256 << 10
"""Bytes that the event loop reads at once at most."""


OVER_TLS = [name for name, each in FLOODS.items() if each.tls]


def headed(head: str, key: str) -> bytes:
    return f"{head} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {key}\r\n".encode()


def post(path: str, key: str, body: bytes) -> bytes:
    return headed(f"POST {path}", key) + b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (
        len(body),
        body,
    )


MESSAGES: dict[str, Callable[[str], bytes]] = {
    "50,000 header fields": lambda key: headed("GET /v1/models", key) + b"a:\r\n" * 50_000 + b"\r\n",
    "1,500 header fields": lambda key: headed("GET /v1/models", key) + b"a:\r\n" * 1500 + b"\r\n",
    "9,000 requests ahead": lambda key: b"GET / HTTP/1.1\r\nhost:a\r\n\r\n" * 9000,
    "chunks of one byte": lambda key: headed("POST /v1/chat/completions", key)
    + b"transfer-encoding: chunked\r\n\r\n" + b"1\r\n \r\n" * 400_000 + b"0\r\n\r\n",
    "upgrades that are not taken": lambda key: b"GET / HTTP/1.1\r\nhost:a\r\nconnection:upgrade\r\nupgrade:x\r\n\r\n"
    * 5000,
}  # fmt: skip
"""Attacks by the form of the message: the whole of it, for a key."""


def reads(message: bytes) -> dict[str, float]:
    """CPU milliseconds of the longest read of `message` on one connection of the gateway."""
    from calls import Caller  # not for the attacker's process, which would import the gateway with it

    async def application(scope, receive, send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    async def longest() -> float:
        took, connection = 0.0, Caller(application, asyncio.get_running_loop()).connection
        for start in range(0, len(message), READ):
            began = time.thread_time()
            connection.data_received(message[start : start + READ])
            took = max(took, time.thread_time() - began)
            await asyncio.sleep(0.01)
        connection.connection_lost(None)
        return took

    return {"read": round(asyncio.run(longest()) * 1000, 1)}


def installation(data: Path) -> tuple[dict[str, str], str]:
    """Four tenants with a backend each; their keys, and an access token that may check policies."""
    made = Installation.create(data, "bench")
    database = made.database()
    control = made.control(database, actor="system", on_event=lambda event: None)
    keys = {}
    for tenant, policy in {"acme": POLICY, "globex": POLICY, "open": UNREDACTED, "keeping": KEEPING}.items():
        control.create_tenant(tenant)
        control.activate_policy(tenant, policy)
        control.create_project(tenant, "main", purpose="benchmark", legal_basis="contract", risk_class="limited")
        identity = BackendIdentity("bench", tenant, "eu-fr-par", f"mock-{tenant}")
        control.register_backend(identity, url=f"http://127.0.0.1:{MOCK_PORT}", models=["mock"])
        keys[tenant] = control.create_key(tenant, "main")[1].token
    person = control.create_person("acme", "Ada", ["tenant-admin"])
    token = control.create_token("acme", person.id, expires_at=datetime.now(UTC) + timedelta(days=1))[1].token
    database.close()
    return keys, token


def steps(body: bytes) -> dict[str, float]:
    """CPU milliseconds of each step that holds the gateway's interpreter for one request: what a quiet machine's event
    loop waits at most for one of them. They do not depend on what else the machine does."""
    took: dict[str, float] = {}
    gc.collect()
    gc.freeze()  # as the gateway does at its start

    def timed(name: str, work, *arguments):
        began = time.thread_time()
        try:
            return work(*arguments)
        except Exception:  # refused here, and nothing follows
            return None
        finally:
            took[name] = round((time.thread_time() - began) * 1000, 1)

    if len(body) > 8 << 20:
        return took
    longest, scan = 0.0, BOUNDS.scan(body)
    while timed("count", lambda: next(scan, True) is None):  # others have their turn between two slices
        longest = max(longest, took["count"])
    took["count"] = max(longest, took["count"])
    try:
        BOUNDS.check(body)
    except BodyTooComplex:
        return took
    parse = finite_json.read if len(body) <= INLINE_PARSE_BYTES else finite_json.read_large
    parsed = timed("parse", parse, body)
    if parsed is not None and timed("shape", lambda: check_shape(parsed) or True):
        endpoint = COMPLETIONS if "prompt" in parsed else CHAT
        timed("validate", endpoint.request_type.model_validate, parsed)
        if len(body) > INLINE_BYTES:
            pickled = timed("pickle", framed, parsed)
            timed("unpickle", pickle.loads, pickled[4:])
        timed("serialise", finite_json.write, parsed)
    return took


def scheduled(gateway: int) -> tuple[float, float]:
    """Milliseconds so far for which the main thread of `gateway` ran; and for which it, and this process, were ready
    and had no core."""
    ran, waited = map(int, Path(f"/proc/{gateway}/task/{gateway}/schedstat").read_bytes().split()[:2])
    return ran / 1e6, (waited + int(Path("/proc/self/schedstat").read_bytes().split()[1])) / 1e6


async def worst(base: str, key: str, seconds: float, gateway: int) -> dict[str, float]:
    """Of the other tenant's calls within `seconds`, in milliseconds. `gateway`: its process."""
    took: dict[str, list[float]] = {"models": [], "call": [], "fresh": [], "net": [], "loop": []}
    short = {"model": "mock", "messages": [{"role": "user", "content": "hi"}]}

    async def every(pause: float, name: str, method: str, path: str, **sent: object) -> None:
        until = time.monotonic() + seconds
        connections = aiohttp.TCPConnector(ssl=False, force_close=name == "fresh")
        headers = {"authorization": f"Bearer {key}"}
        async with aiohttp.ClientSession(headers=headers, connector=connections) as http:
            while time.monotonic() < until:
                (ran, idle), began = scheduled(gateway), time.perf_counter()
                async with http.request(method, base + path, **sent) as answer:
                    await answer.read()
                    assert answer.status == 200, answer.status
                took[name].append((time.perf_counter() - began) * 1000)
                if name == "models":
                    runs, idles = scheduled(gateway)
                    took["net"].append(took[name][-1] - (idles - idle))
                    took["loop"].append(runs - ran)
                await asyncio.sleep(pause)

    gc.collect()
    gc.disable()  # or answers would be late by this process's own collections, of up to 190 ms
    try:
        await asyncio.gather(
            every(0.005, "models", "GET", "/v1/models"),
            every(0.05, "call", "POST", "/v1/chat/completions", json=short),
            every(0.02, "fresh", "GET", "/healthz"),
        )
    finally:
        gc.enable()
    return {
        "models_worst_ms": round(max(took["models"]), 1),
        "net_worst_ms": round(max(took["net"]), 1),
        "loop_worst_ms": round(max(took["loop"]), 1),
        "call_worst_ms": round(max(took["call"]), 1),
        "fresh_worst_ms": round(max(took["fresh"]), 1),
        "models_median_ms": round(statistics.median(took["models"]), 2),
    }


def attack(message: bytes, results: "multiprocessing.SimpleQueue[Counter[int] | None]") -> None:
    """Send `message` again and again, from two connections at once, until SIGTERM; then put how often each status came.
    Before the first, put None.

    Blocking sockets: the body is sent whole before the answer is read, as many clients do.
    """
    os.nice(5)  # two cores are few for gateway, inspection, mock, victim and attacker; a real one has its own
    statuses: Counter[int] = Counter()
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())

    def run() -> None:
        while not ended.is_set():
            with socket.create_connection(("127.0.0.1", PORT)) as to, suppress(OSError):
                to.settimeout(30)
                status = 0
                try:
                    to.sendall(message)
                    with to.makefile("rb") as answer:
                        status = int(answer.readline()[9:12] or 0)
                        stream = b"text/event-stream\r\n"
                        while (line := answer.readline()).strip():  # the head
                            if line.endswith(stream):
                                while answer.readline() not in (b"0\r\n", b""):
                                    pass
                                break
                except (OSError, ValueError):  # closed before all was sent
                    pass
                statuses[status] += 1

    threads = [threading.Thread(target=run, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    results.put(None)
    while not ended.wait(0.5):
        pass
    results.put(Counter(statuses))


@contextmanager
def attacking(message: bytes) -> Iterator[Counter[int]]:
    """Attack inside of the block; what came of it is in the yielded counter after it."""
    statuses: Counter[int] = Counter()
    spawn = multiprocessing.get_context("spawn")
    results = spawn.SimpleQueue()
    attacker = spawn.Process(target=attack, args=(message, results), daemon=True)
    attacker.start()
    results.get()  # it has imported what it needs
    try:
        yield statuses
    finally:
        attacker.terminate()
        statuses.update(results.get() or {})
        attacker.join()


@contextmanager
def flooding(name: str, port: int, key: str) -> Iterator[Counter[str]]:
    """As `attacking`, by a flood of that name."""
    answers: Counter[str] = Counter()
    script = (sys.executable, str(HERE / "load" / "floods.py"), name, str(port), key)
    with subprocess.Popen(script, stdout=subprocess.PIPE, text=True) as attacker:
        assert attacker.stdout is not None
        attacker.stdout.readline()  # it has imported what it needs
        try:
            yield answers
        finally:
            attacker.terminate()
            answers.update(json.loads(attacker.stdout.readline() or "{}"))


async def measured(base: str, keys: dict[str, str], token: str, seconds: float, only: str, gateway: int) -> list[dict]:
    for _ in range(600):  # a loaded machine takes its time to start a gateway
        try:
            await worst(base, keys["globex"], 1, gateway)
            break
        except aiohttp.ClientError:
            await asyncio.sleep(0.2)
    attacks: dict[str, tuple[str, str, bytes]] = {
        name: ("/v1/completions" if b'"prompt"' in body[:40] else "/v1/chat/completions", keys["acme"], body)
        for name, body in ATTACKS.items()
    }
    attacks["the same prompt without redaction"] = (
        "/v1/completions", keys["open"], ATTACKS["300,000 token ids of a prompt"]
    )  # fmt: skip
    attacks["3.9 MB of text without redaction"] = ("/v1/chat/completions", keys["open"], ATTACKS["3.9 MB of text"])
    attacks["answers of 8 MB"] = ("/v1/chat/completions", keys["acme"], said("mode:large"))
    attacks["answers of 8 MB without redaction"] = ("/v1/chat/completions", keys["open"], said("mode:large"))
    attacks["answers of small events"] = ("/v1/chat/completions", keys["acme"], said("mode:events", stream=True))
    check = json.dumps({"document": RULES}).encode()
    attacks["4,000 rules of a policy"] = ("/admin/v1/tenants/acme/policies/check", token, check)
    sent = {
        name: (post(*attack), steps(attack[2]))
        for name, attack in attacks.items()
        if any(each in name for each in only.split(";"))
    }
    made = {
        name: make(keys["acme"]) for name, make in MESSAGES.items() if any(each in name for each in only.split(";"))
    }
    sent |= {name: (message, await asyncio.to_thread(reads, message)) for name, message in made.items()}
    return [
        await compared(name, attacking(message), cpu, base, keys["globex"], seconds, gateway)
        for name, (message, cpu) in sent.items()
    ]


async def flooded(base: str, keys: dict[str, str], seconds: float, only: str, gateway: int) -> list[dict]:
    """Every flood of those that the gateway at `base` can have."""
    port, tls = int(base.rsplit(":", 1)[1]), base.startswith("https")
    chosen = [
        name for name, each in FLOODS.items() if each.tls is tls and any(part in name for part in only.split(";"))
    ]
    return [
        await compared(name, flooding(name, port, keys["keeping"]), {}, base, keys["globex"], seconds, gateway)
        for name in chosen
    ]


async def compared(name, attack, cpu: dict[str, float], base: str, key: str, seconds: float, gateway: int) -> dict:
    """A quiet phase and one inside of `attack`, whose steps take `cpu`."""
    quiet = await worst(base, key, seconds / 2, gateway)
    with attack as answers:
        under = await worst(base, key, seconds, gateway)
    stall = round(under["models_worst_ms"] - quiet["models_worst_ms"], 1)
    print(f"{name:40} stall {stall:7.1f} ms  {under}  quiet {quiet['models_worst_ms']}  {answers}", file=sys.stderr)
    return {
        "attack": name,
        "answers": dict(answers),
        "longest_step_cpu_ms": max(cpu.values(), default=0.0),
        "steps_cpu_ms": cpu,
        "stall_ms": stall,
        "quiet": quiet,
        "under_attack": under,
    }


def certificate(folder: Path) -> dict[str, str]:
    """Settings of a gateway that speaks TLS, with a certificate in `folder` (ECDSA on P-256, which most have)."""
    key, cert = folder / "key.pem", folder / "cert.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
         "-subj", "/CN=127.0.0.1", "-keyout", str(key), "-out", str(cert)],
        check=True, capture_output=True,
    )  # fmt: skip
    return {"DOMICILE__LISTEN__CERT_FILE": str(cert), "DOMICILE__LISTEN__KEY_FILE": str(key)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="write the JSON here as well")
    parser.add_argument("--only", default="", help="attacks whose name holds one of these, with semicolons between")
    parser.add_argument("--seconds", type=float, default=4, help="of each attack")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        keys, token = installation(folder / "data")
        mock = f"http://127.0.0.1:{MOCK_PORT}"
        stack.enter_context(
            process(sys.executable, str(HERE / "load" / "mock_upstream.py"), str(MOCK_PORT), ready=f"{mock}/health")
        )
        began, found = os.getloadavg()[0], []
        up = (sys.executable, "-m", "gateway", "up", "--data", str(folder / "data"))
        for scheme, port in (("http", PORT), ("https", TLS_PORT)):
            if scheme == "https" and not any(part in name for part in options.only.split(";") for name in OVER_TLS):
                continue
            settings = certificate(folder) if scheme == "https" else {}
            base = f"{scheme}://127.0.0.1:{port}"
            with process(*up, ready=f"{base}/healthz", DOMICILE__LISTEN__PORT=str(port), **settings) as gateway:
                if scheme == "http":
                    found += asyncio.run(measured(base, keys, token, options.seconds, options.only, gateway))
                found += asyncio.run(flooded(base, keys, options.seconds, options.only, gateway))
    report = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{os.cpu_count()} x {cpu_model()}",
        "load": [round(began, 1), round(os.getloadavg()[0], 1)],
        "budget_ms": BUDGET_MS,
        "attacks": found,
    }
    text = json.dumps(report, indent=1, ensure_ascii=False)
    if options.out:
        options.out.write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
