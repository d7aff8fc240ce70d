"""An outside judge: `pii-leak-benchmark` sends personal data through a whole gateway and looks at what came out of it.

Run: python -m bench.policy.redaction_leaks [--iterations N] [--json]. The judge starts a capture server that plays the
model. A gateway with its store, log and redaction runs on loopback; its backend hands every request on to the capture
server byte for byte. Exit status is the judge's: 0 where nothing leaked and every value came back.
"""

import argparse
import asyncio
import json
import socket
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from aiohttp import web

from policy.redact.actions.plan import LABELS, OUTPUT_LABELS
from tests.fakes.backend import FakeBackend
from tests.fakes.lab import lab

POLICY = "\n".join([
    "policy: judged",
    "version: 1",
    "residency: {process_in: EEA, store_in: EEA}",
    f"redaction: {{input: {{{', '.join(f'{label}: pseudonymise' for label in LABELS)}}},",
    f"  output: {{{', '.join(f'{label}: mask' for label in OUTPUT_LABELS)}}}}}",
])  # fmt: skip


@dataclass
class Relay(FakeBackend):
    """KeysAndSigner requests on to `target` and its answers back, as they come."""

    target: str = ""

    async def generate(self, request):
        body = await request.read()
        headers = {"content-type": "application/json", "authorization": "Bearer none"}
        async with (
            aiohttp.ClientSession(auto_decompress=False) as http,
            http.post(self.target + request.path, data=body, headers=headers) as answer,
        ):
            response = web.StreamResponse(
                status=answer.status, headers={"content-type": answer.headers.get("content-type", "")}
            )
            await response.prepare(request)
            async for piece in answer.content.iter_any():
                await response.write(piece)
            await response.write_eof()
            return response


async def judge(iterations: int, folder: Path) -> tuple[int, str, dict[str, object]]:
    """The judge's exit status, what it printed, and its report."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    relay = Relay(target=f"http://127.0.0.1:{port}")
    async with lab(
        folder, set_up=lambda made: made.tenant("acme", POLICY), backends={"acme/eu-fr-par/acme-1": relay}
    ) as running:
        report = folder / "report.json"
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "pii_leak_benchmark.cli",
            "selfcheck",
            "--target-base-url",
            f"{running.base}/v1",
            "--target-api-key",
            running.key(),
            "--target-model",
            relay.model,
            "--capture-port",
            str(port),
            "--iterations",
            str(iterations),
            "--json-out",
            str(report),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        printed, _ = await process.communicate()
        read = json.loads(report.read_text(encoding="utf-8")) if report.exists() else {}
        return process.returncode or 0, printed.decode(), read


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print the judge's own report")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        status, printed, report = asyncio.run(judge(asked.iterations, Path(folder)))
    print(json.dumps(report, indent=1) if asked.json else printed)
    raise SystemExit(status)


if __name__ == "__main__":
    main()
