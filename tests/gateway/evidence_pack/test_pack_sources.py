"""Every process of a gateway makes packs and answers from the gateway's registers, not from empty ones."""

import subprocess
import sys

PROGRAM = """
import asyncio, sys
from pathlib import Path
from audit.incidents.pack_inputs import evidence_sources
from audit.privacy.kept_content import content_sources
from gateway.cli.up import run_gateway
from gateway.configuration.settings import load_settings
from gateway.evidence_pack.pack_sources import give_sources

before = len(evidence_sources), len(content_sources)
status = asyncio.run(run_gateway(load_settings(data=Path(sys.argv[1]))))
give_sources()
print(before, len(evidence_sources), len(content_sources), status)
"""


def test_a_gateway_started_without_the_commands_as_a_worker_is_has_the_registers_once(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, tmp_path / "nowhere"], capture_output=True, text=True, check=True
    )
    assert done.stdout.split("\n")[-2] == "(0, 0) 1 1 1"
