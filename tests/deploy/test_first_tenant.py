"""docs/first-tenant.md: its commands in its order, up to an answer of the demonstration's model."""

import os
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

from backend.models.checkpoints.demo import find_demo_model
from tests.fakes.ports import free_port
from tests.fakes.warm_command import program

TREE = Path(__file__).parents[2]
TEXT = (TREE / "docs" / "first-tenant.md").read_text()
BLOCKS = re.findall(r"^```bash\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
MODEL, UP, CALL, AFTER = BLOCKS[0], BLOCKS[-3], BLOCKS[-2], BLOCKS[-1]


def shell(script, folder, environment):
    script = f"domicile() {{ '{program()}' \"$@\"; }}\nset -euo pipefail\n{script}"
    done = subprocess.run(
        ["bash", "-c", script], cwd=folder, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def until_up(base, process):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        try:
            return urllib.request.urlopen(f"{base}/healthz").status
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.2)
    raise AssertionError("the gateway did not come up")


def test_the_page_leads_to_an_answer(tmp_path):
    assert "export MODEL=" in MODEL
    assert UP.strip() == "domicile up"
    port = free_port()
    environment = os.environ | {
        "PYTHONPATH": str(TREE), "MODEL": str(find_demo_model()), "DOMICILE__LISTEN__PORT": str(port),
    }  # fmt: skip
    said = [shell(block, tmp_path, environment) for block in BLOCKS[1:-3]]
    assert "acme version 1 is sound" in said[1]
    assert "eu-office: allowed" in said[2] or "allow" in said[2]
    assert "next: domicile up" in said[3]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen([program(), "up"], cwd=tmp_path, env=environment, stdout=log, stderr=log)
    try:
        until_up(f"http://127.0.0.1:{port}", process)
        answer = shell(CALL.replace("8400", str(port)), tmp_path, environment)
        assert '"finish_reason"' in answer
        after = shell(AFTER, tmp_path, environment)
        assert re.search(r"small-\w+ +mixed +eu-office +ready", after)
        assert "holds" in after
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    lines = (tmp_path / "log").read_text()
    assert re.search(r"starting backend small-\w+ of acme/small in eu-office", lines)
    assert re.search(r"backend small-\w+ of acme/small in eu-office is ready after \d+ s", lines)
