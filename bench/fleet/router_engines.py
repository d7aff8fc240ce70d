"""How much of the prefix cache routing keeps, measured on real engines: ``python -m bench.fleet.router --engines``.

Four backends of a random small model behind a whole gateway, against one with the KV memory of all four; the same
conversations, growing under shared system prompts, four at once. A hit is a prompt token that the engine says it had
(``usage.prompt_tokens_details.cached_tokens``).
"""

import asyncio
import random
import string
import tempfile
from contextlib import ExitStack
from pathlib import Path

from regions.identity.identity import BackendIdentity
from tests.backend.running import Backend
from tests.backend.tiny import tiny_model, write_folder
from tests.fakes.lab import OPEN_POLICY, Lab, chat, lab

ENGINES, BLOCKS = 4, 700
SYSTEMS, CONVERSATIONS, TURNS, AT_ONCE = 8, 24, 320, 4


def conversations(seed: int = 7) -> list[list[str]]:
    """Prompts in the order they are asked, `AT_ONCE` together, each of another conversation."""
    draw = random.Random(seed)

    def words(size: int) -> str:
        return "".join(draw.choices(string.ascii_lowercase + " ", k=size))

    systems = [words(draw.randint(400, 1200)) for _ in range(SYSTEMS)]
    under_way = [draw.choice(systems) for _ in range(CONVERSATIONS)]
    asked = []
    for _ in range(TURNS // AT_ONCE):
        together = draw.sample(range(CONVERSATIONS), AT_ONCE)
        for at in together:
            if len(under_way[at]) > 2400 or draw.random() < 0.03:
                under_way[at] = draw.choice(systems)  # it is over, another begins
            under_way[at] += words(draw.randint(60, 300))
        asked.append([under_way[at] for at in together])
    return asked


async def hit_rate(urls: list[str], asked: list[list[str]]) -> float:
    def set_up(made: Lab) -> None:
        made.tenant("acme", OPEN_POLICY)
        for number, url in enumerate(urls):
            identity = BackendIdentity("eu-1", "acme", "eu-fr-par", f"acme-{number}")
            made.control.register_backend(identity, url=url, models=["small"])

    hit = total = 0
    with tempfile.TemporaryDirectory() as place:
        async with lab(Path(place), set_up=set_up, backends={}) as made:
            for together in asked:
                answers = await asyncio.gather(*(made.post(chat(one, max_tokens=2)) for one in together))
                for answer in answers:
                    usage = answer.json["usage"]
                    hit += usage["prompt_tokens_details"]["cached_tokens"]
                    total += usage["prompt_tokens"]
    return hit / total


def measure() -> dict[str, object]:
    asked = conversations()
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        folder = write_folder(Path(place) / "tiny", tiny_model())

        def engine(name: str, blocks: int) -> str:
            options = ("--model", str(folder), "--served-name", "small", "--kv-blocks", str(blocks))
            return stack.enter_context(Backend(Path(place) / name, *options)).url

        single = asyncio.run(hit_rate([engine("single", BLOCKS * ENGINES)], asked))
        routed = asyncio.run(hit_rate([engine(f"one-{n}", BLOCKS) for n in range(ENGINES)], asked))
    return {"engines": ENGINES, "calls": TURNS, "single": single, "routed": routed, "kept": routed / single}
