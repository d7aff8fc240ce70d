"""A backend for launcher tests: takes the options of `backend serve`, and behaves as it is told."""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

parser = argparse.ArgumentParser()
NAMES = [
    "model",
    "served-name",
    "host",
    "cert",
    "key",
    "ca",
    "peer-uri",
    "tenant",
    "region",
    "backend-id",
    "threads",
    "device",
    "tensor-parallel-size",
]
for option in [*NAMES, "behave"]:
    parser.add_argument(f"--{option}")
parser.add_argument("--port", type=int)
options = parser.parse_args()
behave = options.behave or "well"

print("loading", file=sys.stderr, flush=True)
Path("seen.json").write_text(json.dumps({"options": vars(options), "env": dict(os.environ), "pid": os.getpid()}))
if behave == "fail":
    print("cannot load the model: not enough memory", file=sys.stderr)
    sys.exit(3)
if behave == "hang":
    time.sleep(3600)
if behave == "stubborn":
    signal.signal(signal.SIGTERM, lambda *_: Path("terminated").touch())
if behave in ("parent", "parent that exits", "parent of a daemon"):
    sleep = [sys.executable, "-c", "import time; time.sleep(3600)"]
    grandchild = subprocess.Popen(sleep, start_new_session=behave == "parent of a daemon")
    Path("grandchild").write_text(str(grandchild.pid))
if behave == "crash twice":
    count = Path("starts")
    starts = int(count.read_text()) + 1 if count.exists() else 1
    count.write_text(str(starts))
print("not a ready line", flush=True)
print(json.dumps({"event": "ready", "port": 4000 + os.getpid() % 1000, "pid": os.getpid()}), flush=True)
if behave == "chatty":
    print("x" * 1_000_000, flush=True)
    Path("said").touch()
if behave == "crash twice" and starts <= 2:
    sys.exit(1)
if behave == "parent that exits":
    sys.exit(1)
while True:
    time.sleep(0.05)
