"""A real server that is not ours behind a whole gateway: ``python -m bench.own_server``.

Starts Hugging Face's ``transformers serve`` (pip install 'transformers[serving]' accelerate) on a random small model,
registers it as a tenant's own server, and asks as a client would. Prints what was seen, and stops with 1 if anything
was not as it should be.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from regions.identity import BackendIdentity
from regions.trust import Trust
from tests.backend.tiny import tiny_model, write_folder
from tests.fakes.lab import POLICY, Answer, Lab, chat, lab

PORT = 18990
START_S = 120
MAIL = "jan@example.org"


@contextmanager
def server(folder: Path) -> Iterator[str]:
    """Gives its URL when it is ready."""
    command = [sys.executable, "-m", "transformers.cli.transformers", "serve", str(folder), "--device", "cpu"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    with (folder / "log").open("wb") as log:
        child = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(PORT)], env=environment, stdout=log, stderr=log
        )
    try:
        ends = time.monotonic() + START_S
        while not _answers(f"http://127.0.0.1:{PORT}/health"):
            if child.poll() is not None or time.monotonic() > ends:
                raise SystemExit((folder / "log").read_text()[-2000:])
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


async def trial(folder: Path, url: str) -> dict[str, object]:
    model = str(folder)

    def set_up(made: Lab) -> None:
        made.tenant("acme", POLICY + "priority: high\n")
        theirs = BackendIdentity("eu-1", "acme", "eu-fr-par", "acme-own")
        made.control.register_backend(theirs, url=url, models=[model], kind="openai", trust=Trust(plain=True))

    with tempfile.TemporaryDirectory() as place:
        async with lab(Path(place), set_up=set_up, backends={}) as made:
            ask = {"model": model, "max_tokens": 12, "temperature": 0, "metadata": {"conversation_id": "c"}}
            whole = await made.post(chat(f"write to {MAIL}", **ask))
            streamed = await made.post(
                chat(f"write to {MAIL}", **ask, stream=True, stream_options={"include_usage": True})
            )
            refused = await made.post(chat("hi", **{**ask, "temperature": 1.5, "unheard_of": 1}))
            events = made.events()
            return judged(whole, streamed, refused, events)


def judged(whole: Answer, streamed: Answer, refused: Answer, events: list[dict[str, object]]) -> dict[str, object]:
    recorded = [event for event in events if event["type"] == "inference.completed"]
    checks = {
        "whole answer": whole.status == 200 and bool(whole.text),
        "streamed answer": streamed.status == 200 and bool(streamed.text),
        # a random model ends inside a character, which its stream leaves out
        "both say the same": whole.text.rstrip("\ufffd") == streamed.text.rstrip("\ufffd"),
        "stream ends with [DONE]": streamed.events[-1] == "[DONE]",
        "usage is metered both ways": [bool(one["tokens_out"]) for one in recorded] == [True, True],
        "answer names the place": whole.headers["x-domicile-country"] == "FR",
        "refusal in OpenAI's shape": (refused.status, set(refused.error) >= {"message", "type"}) == (422, True),
        "no address in the record": MAIL not in json.dumps(events),
    }
    return {
        "server": f"transformers {version('transformers')} serve",
        "torch": version("torch"),
        "refusal": refused.error,
        "checks": checks,
    }


def main() -> int:
    with tempfile.TemporaryDirectory() as place:
        folder = write_folder(Path(place) / "tiny", tiny_model(), model_type="llama")
        with server(folder) as url:
            found = asyncio.run(trial(folder, url))
    print(json.dumps(found, indent=1))
    return 0 if all(dict(found["checks"]).values()) else 1  # type: ignore[call-overload]


if __name__ == "__main__":
    sys.exit(main())
