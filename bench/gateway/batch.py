"""A batch of 10,000 lines through a whole gateway, with content kept: lines a second, memory, interactive calls beside.

    python -m bench.gateway.batch --lines 10000 --out bench/results/batch-2026-11-30.json

Everything is on loopback: the mock upstream, which answers at once, and ``domicile up`` in a process of its own.
Memory is the gateway's own (VmHWM of /proc, the most it ever held), before the upload, after it, and after the batch.
Interactive calls are made one after the other before the batch and while it runs.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
import urllib.request
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

from bench.gateway.run import POLICY, cpu_model, installation, process

MOCK_PORT, OUR_PORT = 9110, 9411
KEEPING = POLICY + "retention: {metadata: 12mo, content: 'encrypted, 7d'}\n"
BASE = f"http://127.0.0.1:{OUR_PORT}/v1"
TEXT = "Write to anna.muster@example.org about DE89 3704 0044 0532 0130 00 and say when the parcel comes. " * 4
INTERACTIVE = 40


def request(key: str, method: str, path: str, body: bytes | None = None, kind: str = "application/json") -> bytes:
    headers = {"authorization": f"Bearer {key}", "content-type": kind}
    asked = urllib.request.Request(BASE + path, data=body, method=method, headers=headers)
    with urllib.request.urlopen(asked, timeout=120) as answer:
        return answer.read()


def upload(key: str, lines: int, persons: int) -> tuple[str, int]:
    """A file of so many lines, about so many persons (0: none is named); its id and its bytes."""
    written = []
    for number in range(lines):
        body = {"model": "mock", "messages": [{"role": "user", "content": f"{number} {TEXT}"}]}
        if persons:
            body["user"] = f"person-{number % persons}"
        written.append(
            json.dumps({"custom_id": f"line-{number}", "method": "POST", "url": "/v1/chat/completions", "body": body})
        )
    content = "\n".join(written).encode()
    head = (
        b'--cut\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        b'--cut\r\ncontent-disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n'
    )
    form = head + content + b"\r\n--cut--\r\n"
    said = json.loads(request(key, "POST", "/files", form, "multipart/form-data; boundary=cut"))
    return said["id"], said["bytes"]


def memory_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return round(int(line.split()[1]) / 1024, 1)
    raise SystemExit("no VmHWM in /proc")


def interactive_ms(key: str) -> float:
    """The median of some calls, one after the other."""
    body = json.dumps({"model": "mock", "messages": [{"role": "user", "content": TEXT}]}).encode()
    took = []
    for _ in range(INTERACTIVE):
        began = time.perf_counter()
        request(key, "POST", "/chat/completions", body)
        took.append((time.perf_counter() - began) * 1000)
    return round(statistics.median(took), 1)


def one_batch(key: str, pid: int, lines: int, persons: int) -> dict:
    before = memory_mib(pid)
    began = time.perf_counter()
    file, size = upload(key, lines, persons)
    uploaded = time.perf_counter()
    after_upload = memory_mib(pid)
    asked = {"input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    batch = json.loads(request(key, "POST", "/batches", json.dumps(asked).encode()))
    while json.loads(request(key, "GET", f"/batches/{batch['id']}"))["request_counts"]["completed"] < lines // 10:
        time.sleep(0.05)
    beside = interactive_ms(key)
    while (batch := json.loads(request(key, "GET", f"/batches/{batch['id']}")))["status"] not in (
        "completed",
        "failed",
    ):
        time.sleep(0.2)
    ended = time.perf_counter()
    results = request(key, "GET", f"/files/{batch['output_file_id']}/content").splitlines()
    names = {json.loads(line)["custom_id"] for line in results}
    if batch["request_counts"] != {"total": lines, "completed": lines, "failed": 0} or len(names) != len(results):
        raise SystemExit(f"the batch did not answer each line once: {batch}")
    return {
        "lines": lines,
        "persons": persons,
        "file_mib": round(size / 2**20, 1),
        "upload_s": round(uploaded - began, 2),
        "batch_s": round(ended - uploaded, 1),
        "lines_per_s": round(lines / (ended - uploaded), 1),
        "gateway_peak_mib": {"before": before, "after_upload": after_upload, "after_batch": memory_mib(pid)},
        "interactive_ms_beside": beside,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="write the JSON here as well")
    parser.add_argument("--lines", type=int, default=10_000)
    parser.add_argument("--persons", type=int, nargs="+", default=[500], help="a batch each; 0: no line names one")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        key = installation(folder / "data", KEEPING, MOCK_PORT)
        mock = f"http://127.0.0.1:{MOCK_PORT}"
        stack.enter_context(process(sys.executable, "mock_upstream.py", str(MOCK_PORT), ready=f"{mock}/health"))
        up = (sys.executable, "-m", "gateway", "up", "--data", str(folder / "data"))
        ready = f"http://127.0.0.1:{OUR_PORT}/healthz"
        with process(*up, ready=ready, DOMICILE__LISTEN__PORT=str(OUR_PORT)) as pid:
            alone = interactive_ms(key)
            batches = [one_batch(key, pid, options.lines, persons) for persons in options.persons]
    report = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{os.cpu_count()} x {cpu_model()}, load {os.getloadavg()[0]:.1f} at the end",
        "all_on": "policy, redaction both ways, record and content kept (SQLite, synchronous=FULL), files sealed",
        "interactive_ms_alone": alone,
        "batches": batches,
    }
    text = json.dumps(report, indent=2, ensure_ascii=False)
    if options.out:
        options.out.write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
