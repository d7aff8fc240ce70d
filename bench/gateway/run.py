"""The gateway beside a 60-line proxy, in one run: CPU a request and a streamed event, latency, behaviour.

    python bench/gateway/run.py --out bench/results/gateway-2026-11-28.json
    python bench/gateway/run.py --litellm build/litellm --history bench/results/gateway-history.jsonl

With `--litellm` LiteLLM's proxy, which that folder is a virtual environment of, is measured in the same run.
`--history` appends one dated line of figures to a file. `--workers N` measures a gateway of N worker processes too:
load and mock use the same cores, so what they answer in a second says little; `workers.throughput` is what N cores of
their own would answer beside one: N times the CPU of a request with one process over that with N.

Everything is on loopback: a mock upstream that answers at once, `ref_proxy.py` (key look-up, JSON parse, bytes passed
through; no policy, redaction or record) and a whole gateway with all of it on. Targets are measured in turn, several
times; the figures are medians, and the ratio is the one to compare between machines.
"""

import argparse
import json
import os
import platform
import signal
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from bench.gateway.load import litellm_peer
from gateway.installation.installation import Installation
from regions.identity.identity import BackendIdentity

LOAD = Path(__file__).parent / "load"
"""What sends load and what answers it: scripts that know nothing of the gateway."""
ROOT = LOAD.parents[2]
MOCK_PORT, REF_PORT, PEER_PORT, OUR_PORT, WORKERS_PORT = 9100, 9206, 9207, 9401, 9403
WORKERS = "domicile_workers"
OTHER_APIS = ("responses", "messages")
"""Measured beside chats, at the gateway alone; ratios to its own chats."""
START_S = 90  # LiteLLM takes half a minute on a busy machine
POLICY = """
policy: bench
version: 1
residency: {process_in: EEA, store_in: EEA, operator: {head_office: EEA, ultimate_parent: EEA}}
redaction:
  input: {email: pseudonymise, iban: pseudonymise, card: mask, phone: pseudonymise, secret: block}
  output: {email: mask, iban: mask, card: mask, phone: mask}
transparency: {art50_notice: header}
"""


def installation(data: Path, policy: str, mock_port: int = MOCK_PORT) -> str:
    """A folder with one tenant whose only backend is the mock; its key."""
    made = Installation.create(data, "bench")
    database = made.database()
    control = made.control(database, actor="system", on_event=lambda event: None)
    control.create_tenant("acme")
    control.activate_policy("acme", policy)
    control.create_project("acme", "main", purpose="benchmark", legal_basis="contract", risk_class="limited")
    identity = BackendIdentity("bench", "acme", "eu-fr-par", "mock-1")
    control.register_backend(identity, url=f"http://127.0.0.1:{mock_port}", models=["mock"])
    key = control.create_key("acme", "main")[1].token
    database.close()
    return key


@contextmanager
def process(*command: str, ready: str, **environment: str):
    child = subprocess.Popen(
        command,
        cwd=LOAD,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    try:
        wait_until_ready(child, ready)
        yield child.pid
    finally:
        child.send_signal(signal.SIGTERM)
        child.wait(30)


def wait_until_ready(child: subprocess.Popen[bytes], url: str) -> None:
    """Until `url` answers anything. Raises SystemExit where `child` ends before, or takes longer than START_S."""
    until = time.monotonic() + START_S
    while time.monotonic() < until:
        try:
            urllib.request.urlopen(url, timeout=1, context=ssl._create_unverified_context()).close()
            return
        except urllib.error.HTTPError:
            return
        except OSError:
            if child.poll() is not None:
                raise SystemExit(f"{child.args} ended with {child.returncode}") from None
            time.sleep(0.1)
    raise SystemExit(f"{child.args} was not ready within {START_S} s")


def measured(script: str, *arguments: object, **environment: str) -> dict:
    done = subprocess.run(
        [sys.executable, str(LOAD / script), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )
    if done.returncode:
        raise SystemExit(f"{script} ended with {done.returncode}: {done.stderr[-2000:]}")
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="write the JSON here as well")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3, help="of each load cell")
    parser.add_argument("--workers", type=int, help="measure a gateway of so many processes too")
    parser.add_argument("--litellm", type=Path, help="virtual environment of LiteLLM, to measure it too")
    parser.add_argument("--history", type=Path, help="append a line of the figures to this file")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        key = installation(folder / "data", POLICY)
        plain_key = installation(folder / "plain", POLICY.replace("output: {email: mask,", "output: {"))
        python = sys.executable
        mock = f"http://127.0.0.1:{MOCK_PORT}"
        stack.enter_context(process(python, "mock_upstream.py", str(MOCK_PORT), ready=f"{mock}/health"))
        serve = (python, "-m", "uvicorn", "ref_proxy:app", "--port", str(REF_PORT), "--no-access-log", "--log-level",
                 "critical")  # fmt: skip
        ref = stack.enter_context(
            process(*serve, ready=f"http://127.0.0.1:{REF_PORT}/", UPSTREAM=mock, API_KEY="sk-ref")
        )
        targets = {"ref_proxy": (f"http://127.0.0.1:{REF_PORT}/v1", "sk-ref", ref)}
        if options.litellm:
            base = f"http://127.0.0.1:{PEER_PORT}"
            starts = litellm_peer.command(options.litellm, litellm_peer.write_config(folder, mock), PEER_PORT)
            peer = stack.enter_context(process(*starts, ready=f"{base}/health/liveliness", **litellm_peer.QUIET))
            targets["litellm"] = (f"{base}/v1", litellm_peer.KEY, peer)
        up = (python, "-m", "gateway", "up")
        port = {"DOMICILE__LISTEN__PORT": str(OUR_PORT)}
        ready = f"http://127.0.0.1:{OUR_PORT}/healthz"
        with process(*up, "--data", str(folder / "data"), ready=ready, **port) as ours:
            targets["domicile"] = (f"http://127.0.0.1:{OUR_PORT}/v1", key, ours)
            if options.workers:
                targets[WORKERS] = stack.enter_context(several_workers(folder, options.workers, up))
            runs = [
                {name: one_round(name, *target, options.seconds) for name, target in targets.items()}
                for _ in range(options.repeats)
            ]
        with process(*up, "--data", str(folder / "plain"), ready=ready, **port):
            # The probe's tool call says an e-mail address; to compare its deltas, this policy leaves that one alone.
            probe = measured("probe.py", "domicile", f"http://127.0.0.1:{OUR_PORT}/v1", plain_key, "mock", mock)
    report = summary(runs, probe, options.workers or 1)
    if options.litellm:
        report["versions"]["litellm"] = litellm_peer.installed_version(options.litellm)
    if options.history:
        append_line(options.history, report)
    text = json.dumps(report, indent=2, ensure_ascii=False)
    if options.out:
        options.out.write_text(text + "\n", encoding="utf-8")
    print(text)


@contextmanager
def several_workers(folder: Path, workers: int, up: tuple[str, ...]):
    """A gateway of `workers` processes over an installation of its own: base URL, key, the supervisor's process id."""
    key = installation(folder / "workers", POLICY)
    port = {"DOMICILE__LISTEN__PORT": str(WORKERS_PORT)}
    command = (*up, "--data", str(folder / "workers"), "--workers", str(workers))
    with process(*command, ready=f"http://127.0.0.1:{WORKERS_PORT}/readyz", **port) as supervisor:
        yield f"http://127.0.0.1:{WORKERS_PORT}/v1", key, supervisor


def one_round(name: str, base: str, key: str, pid: int, seconds: float) -> dict:
    cpu = measured("cpu_cost.py", name, base, key, "mock", pid, 1500, 100)
    others = {}
    for api in OTHER_APIS if name == "domicile" else ():
        of_api = measured("cpu_cost.py", name, base, key, "mock", pid, 1500, 100, API=api)
        others |= {f"cpu_us_request_{api}": of_api["plain_us"], f"cpu_us_event_{api}": of_api["event_us"]}
        cpu["bad"] += of_api["bad"]
    load = {c: measured("stream_load.py", base, key, "mock", c, seconds) for c in (1, 16)}
    paced = measured("stream_load.py", base, key, "mock", 16, seconds, MSG="mode:paced")
    return {
        "cpu_us_request": cpu["plain_us"],
        "cpu_us_event": cpu["event_us"],
        "ttft_ms_c1": load[1]["ttft_p50"],
        "events_s_c16": load[16]["events_s"],
        "paced_ttft_ms_c16": paced["ttft_p50"],
        **others,
        "failed": cpu["bad"] + sum(cell["errors"] for cell in (*load.values(), paced)),
    }


def summary(runs: list[dict], probe: dict, workers: int = 1) -> dict:
    names = runs[0].keys()
    medians = {n: {k: statistics.median(run[n][k] for run in runs) for k in runs[0][n]} for n in names}
    ref = medians["ref_proxy"]
    costs = ("cpu_us_request", "cpu_us_event")
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{os.cpu_count()} x {cpu_model()}, load {os.getloadavg()[0]:.1f} at the end",
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("uvicorn", "uvloop", "aiohttp", "pydantic", "starlette")},
        },
        "all_on": "keys, limits, policy, redaction both ways, write-ahead record (SQLite, synchronous=FULL), metrics",
        "medians": medians,
        "ratio_to_ref_proxy": {
            name: {cost: round(medians[name][cost] / ref[cost], 2) for cost in costs}
            for name in names
            if name != "ref_proxy"
        },
        "ratio_to_chat": {
            cost.removeprefix("cpu_us_"): round(
                medians["domicile"][cost] / medians["domicile"][cost.rpartition("_")[0]], 2
            )
            for cost in medians["domicile"]
            if cost.endswith(OTHER_APIS)
        },
        **({} if WORKERS not in medians else {"workers": _workers(medians, workers)}),
        "runs": runs,
        "probe": probe,
    }


def _workers(medians: dict, workers: int) -> dict:
    one, several = medians["domicile"], medians[WORKERS]
    costs = {"request": "cpu_us_request", "event": "cpu_us_event"}
    return {
        "processes": workers,
        "throughput": {name: round(workers * one[cost] / several[cost], 2) for name, cost in costs.items()},
    }


def append_line(path: Path, report: dict) -> None:
    """One line of JSON: when, on what, and the medians with their ratios."""
    names = ("date", "machine", "versions", "medians", "ratio_to_ref_proxy", "ratio_to_chat")
    kept = {name: report[name] for name in names}
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(kept | {"repeats": len(report["runs"])}, ensure_ascii=False) + "\n")


def cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


if __name__ == "__main__":
    main()
