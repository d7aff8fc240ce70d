"""Tokens over HTTP: what `backend serve` relays, what that costs, and what the same engine makes without it.

    python bench/engine/serving --out serving-cpu.json                       an engine without a model, on any machine
    python bench/engine/serving --out serving-h200.json --device cuda --shape qwen3-0.6b     or llama-8b, on a card
    python bench/engine/serving --out serving-tiny.json --device cpu --shape tiny            a model of two layers
    python bench/engine/serving --out FOLDER --write --shape llama-8b                        a folder for another server
    python bench/engine/serving --out other.json --other 8000 --device cuda --shape llama-8b    that server, as it runs

Clients stream chat completions in a closed loop (`load`) from the server that `backend serve` starts, with an engine
process of its own. With `--device none` this process has no model and gives tokens at --rate (`stand_in`), and the
model's name, template and tokenizer are those of the demonstration model; what one token costs each stage of the server
is measured besides (`stages`). Otherwise the model has random weights, and a tokenizer of as many words as it has token
ids; then the same numbers of prompts and answers run through the engine alone, in one process and as many at a time:
`ratio` is output tokens a second over HTTP by those.

Another server that has OpenAI's API is measured by the same load where it runs already, on `--write`'s folder under the
name "measured", with random weights of its own.

No network but loopback. CPU times are those of all threads of a process, in microseconds for each token of an answer.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
sys.path[:] = [str(ROOT), *(path for path in sys.path if path != str(Path(__file__).parent))]

from bench.engine.serving import load, stand_in  # noqa: E402
from bench.engine.workloads import DTYPES, SHAPES, STORED  # noqa: E402

MODEL = "measured"
TEMPERATURE = 0.8
WARM_TOKENS = 16
ENGINES = {"backend.process.engine_process", "backend.process.rank_process", stand_in.__name__}  # by their command
DEMO_VOCABULARY = 49152
TEXT = (
    "the of and to in is that for it as was with be by on not his but at are this have from or had an they which one "
    "you were all her she there would their we him been has when who will no more if out so up said what its about"
)
WORDS = TEXT.split()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="none", choices=("none", "cpu", "cuda"))
    parser.add_argument("--shape", default="qwen3-0.6b", choices=sorted(SHAPES))
    parser.add_argument("--dtype", default="bf16", choices=sorted(DTYPES))
    parser.add_argument("--clients", default="64,256", help="comma-separated: how many at a time")
    parser.add_argument("--requests", type=int, help="for each number of clients; default: three for each client")
    parser.add_argument("--prompt", type=int, default=400, help="words of a prompt")
    parser.add_argument("--answer", type=int, default=256, help="tokens of an answer")
    parser.add_argument("--rate", type=float, default=40_000, help="of the engine without a model, tokens a second")
    parser.add_argument("--step-latency-ms", type=float, help="as of `backend serve`; default: as there")
    parser.add_argument("--http-processes", type=int, default=1, help="as of `backend serve`")
    parser.add_argument("--load-processes", type=int, default=max(1, min(4, (os.cpu_count() or 2) // 2)))
    parser.add_argument("--settle", type=float, default=8, help="seconds that a model may capture graphs in before")
    parser.add_argument("--other", type=int, metavar="PORT", help="of loopback, where another server runs")
    parser.add_argument("--write", action="store_true", help="write a model's folder to --out, without weights")
    parser.add_argument("--serve", help="(internal) run the server")
    parser.add_argument("--offline", help="(internal) run the engine alone")
    options = parser.parse_args()
    if options.serve:
        serve(json.loads(options.serve))
        return
    if options.offline:
        options.out.write_text(json.dumps(offline(json.loads(options.offline))))
        return
    if options.write:
        write_folder(options)
        return
    report = measured(options)
    options.out.write_text(json.dumps(report, indent=1) + "\n")
    show(report)


def measured(options: argparse.Namespace) -> dict[str, Any]:
    report: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d", time.gmtime()), "device": options.device, "cores": os.cpu_count(),
        "answer_tokens": options.answer, "rows": [], "http_processes": options.http_processes,
    }  # fmt: skip
    if options.other:
        warm_up(options.other, options)
        report |= {"server": "another", "shape": options.shape, "dtype": options.dtype}
        report["rows"] = [over_http(Running(options.other), clients, options) for clients in numbers(options.clients)]
        return report
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        settings = engine_settings(options, folder)
        if options.device == "none":
            from bench.engine.serving.stages import stages

            report |= {"rate": options.rate, "stages_us": stages()}
        else:
            report |= {"shape": options.shape, "dtype": options.dtype}
        with Server(settings, options) as server:
            report["rows"] = [over_http(server, clients, options) for clients in numbers(options.clients)]
        if options.device != "none":
            run_offline(report, settings, folder, options)
    return report


def numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def run_offline(report: dict[str, Any], settings: dict[str, Any], folder: Path, options: argparse.Namespace) -> None:
    """Adds what the engine alone makes to the rows, and its ratio."""
    work = [
        {"clients": row["clients"], "requests": row["requests"], "prompt": row["prompt_tokens"]}
        for row in report["rows"]
    ]
    told = json.dumps({"settings": settings, "work": work, "answer": options.answer})
    out = folder / "offline.json"
    subprocess.run([sys.executable, __file__, "--offline", told, "--out", str(out)], check=True)
    alone = json.loads(out.read_text())
    report["machine"] = alone["machine"]
    for row, found in zip(report["rows"], alone["rows"], strict=True):
        row |= {"offline_tok_s": found["tok_s"], "offline_step_ms": found["step_ms"]}
        row["ratio"] = round(row["tok_s"] / found["tok_s"], 3)


def show(report: dict[str, Any]) -> None:
    for stage, cost in report.get("stages_us", {}).items():
        print(f"{stage:60s} {cost:8.2f} us a token")
    for row in report["rows"]:
        print(json.dumps(row))


def engine_settings(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Of an `EngineConfig`, as `backend serve` has them by default, and beside them what the shape needs."""
    from backend.cli.serve import CPU_DEFAULTS, GPU_DEFAULTS

    cuda = options.device == "cuda"
    settings: dict[str, Any] = {
        **(GPU_DEFAULTS if cuda else CPU_DEFAULTS), "device": "cuda" if cuda else "cpu",
        "max_waiting": 4 * max(numbers(options.clients)),
    }  # fmt: skip
    if options.step_latency_ms is not None:
        settings["step_latency_ms"] = options.step_latency_ms
    if options.device == "none":
        return settings | {"model": "demo", "max_num_seqs": 256}
    write_model(options, folder)
    settings |= {"model": str(folder), "load_format": "dummy", "max_model_len": 8192, **DTYPES[options.dtype]}
    return settings | ({} if cuda else {"max_model_len": 1024, "num_blocks": 4096})


def write_folder(options: argparse.Namespace) -> None:
    """As `write_model`, with what other servers ask for."""
    options.out.mkdir(parents=True, exist_ok=True)
    write_model(options, options.out)
    settings = options.out / "tokenizer_config.json"
    told = {**json.loads(settings.read_text()), "tokenizer_class": "PreTrainedTokenizerFast"}
    settings.write_text(json.dumps(told))


def write_model(options: argparse.Namespace, folder: Path) -> None:
    shape = SHAPES[options.shape] | STORED.get(options.dtype, {})
    (folder / "config.json").write_text(json.dumps(shape))
    write_tokenizer(folder, shape["vocab_size"])


def write_tokenizer(folder: Path, vocabulary: int) -> None:
    """Byte-level, with a word for every id that is not a byte: each word of `WORDS` is one token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    rng = random.Random(0)
    known = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *(f"Ġ{word}" for word in WORDS), *WORDS]
    ids = {word: id for id, word in enumerate(known)}
    while len(ids) < vocabulary:
        word = "".join(rng.choices("etaoinshrdlucmfwypvbgk", k=rng.randint(2, 8)))
        ids.setdefault(f"Ġ{word}" if rng.random() < 0.7 else word, len(ids))
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=[], ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))


@dataclass(frozen=True)
class Running:
    """A server of somebody else, whose processes are not looked at."""

    port: int

    def cpu_s(self) -> tuple[float, float]:
        return 0.0, 0.0


class Server:
    """The process of the server; use as a context manager."""

    def __init__(self, settings: dict[str, Any], options: argparse.Namespace) -> None:
        environment = {**os.environ, stand_in.RATE: str(options.rate), stand_in.VOCABULARY: str(DEMO_VOCABULARY)}
        told = json.dumps(
            {"settings": settings, "stand_in": options.device == "none", "processes": options.http_processes}
        )
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--serve", told, "--out", os.devnull], stdout=subprocess.PIPE, env=environment
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("the server did not start; read its last lines above")
        self.port: int = json.loads(line)["port"]
        warm_up(self.port, options)

    def cpu_s(self) -> tuple[float, float]:
        """Of the engine's processes, and of all others of the server, so far."""
        engine = server = 0.0
        for pid in descendants(self.process.pid):
            try:
                command = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            seconds = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
            if ENGINES & set(command):
                engine += seconds
            else:
                server += seconds
        return engine, server

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
        assert self.process.stdout is not None
        self.process.stdout.close()


def descendants(pid: int) -> list[int]:
    found = [pid]
    for one in found:
        for children in Path(f"/proc/{one}/task").glob("*/children"):
            try:
                found += [int(child) for child in children.read_text().split()]
            except OSError:
                continue
    return found


def warm_up(port: int, options: argparse.Namespace) -> None:
    most = max(numbers(options.clients))
    load.drive(port, bodies(most, options.prompt, WARM_TOKENS, seed=0), most, options.load_processes)
    if options.device == "cuda":
        time.sleep(options.settle)


def bodies(count: int, words: int, answer: int, seed: int) -> list[bytes]:
    rng = random.Random(seed)
    asked = {
        "model": MODEL, "max_tokens": answer, "temperature": TEMPERATURE, "ignore_eos": True, "stream": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    return [
        json.dumps({**asked, "messages": [{"role": "user", "content": " ".join(rng.choices(WORDS, k=words))}]}).encode()
        for _ in range(count)
    ]


def over_http(server: "Server | Running", clients: int, options: argparse.Namespace) -> dict[str, Any]:
    requests = options.requests or 3 * clients
    asked = bodies(requests, options.prompt, options.answer, seed=clients)
    engine, http = server.cpu_s()
    seen = load.drive(server.port, asked, clients, options.load_processes)
    engine_after, http_after = server.cpu_s()
    wall = seen.end - seen.begin
    return {
        "clients": clients, "requests": requests, "prompt_tokens": seen.prompt_tokens // requests,
        "tok_s": round(seen.tokens / wall, 1), "events": seen.events, "tokens": seen.tokens,
        "first_token_ms": {"p50": load.percentile(seen.first, 0.5), "p99": load.percentile(seen.first, 0.99)},
        "between_ms": {
            "p50": load.percentile(seen.gaps, 0.5), "p90": load.percentile(seen.gaps, 0.9),
            "p99": load.percentile(seen.gaps, 0.99), "max": load.percentile(seen.gaps, 1),
        },
        "server_cpu_us": round((http_after - http) * 1e6 / seen.tokens, 2),
        "engine_cpu_us": round((engine_after - engine) * 1e6 / seen.tokens, 2),
    }  # fmt: skip


def serve(told: dict[str, Any]) -> None:
    """`backend serve`, as its command line has it, with what that cannot say: random weights, or no model."""
    from backend.engine_config import EngineConfig
    from backend.process.engine_client import EngineClient
    from backend.process.parent import die_with_parent
    from backend.server import serving
    from backend.server.base_api import Identity

    die_with_parent()
    if told["stand_in"]:
        EngineClient.program = stand_in.__name__
    options = serving.ServerOptions(
        served_name=MODEL, host="127.0.0.1", port=0, tls=None, identity=Identity(), http_processes=told["processes"]
    )
    serving.serve(EngineConfig(**told["settings"]), options)


def offline(told: dict[str, Any]) -> dict[str, Any]:
    """The engine alone, in this process, on as many requests and as many at a time."""
    from backend.engine.engine import Engine
    from backend.engine.warm_up import warm_up
    from backend.engine_config import EngineConfig
    from backend.models.checkpoints.checkpoint import Checkpoint
    from bench.engine.gpu import machine

    config = EngineConfig(**told["settings"])
    engine = Engine.from_checkpoint(Checkpoint(Path(config.model)), config)
    warm_up(engine)
    while engine.prepare():
        pass
    most = max(row["clients"] for row in told["work"])
    closed_loop(engine, most, most, told["work"][0]["prompt"], WARM_TOKENS, seed=0)
    while engine.prepare():
        pass
    rows = [
        closed_loop(engine, row["clients"], row["requests"], row["prompt"], told["answer"], seed=row["clients"])
        for row in told["work"]
    ]
    return {"rows": rows, "machine": machine()}


def closed_loop(engine: Any, clients: int, requests: int, prompt: int, answer: int, seed: int) -> dict[str, Any]:
    from backend.engine.core.sampling import SamplingParams

    rng = random.Random(seed)
    params = SamplingParams(max_tokens=answer, temperature=TEMPERATURE, ignore_eos=True)
    prompts = deque([rng.randrange(10, engine.vocab_size - 10) for _ in range(prompt)] for _ in range(requests))
    engine.blocks.forget_prefixes()
    tokens, id, steps = 0, 0, []
    begin = last = time.perf_counter()
    for id in range(min(clients, requests)):
        engine.add(id, prompts.popleft(), params)
    while engine.has_work:
        for item in engine.step():
            tokens += item.token is not None
            if item.finish is not None and prompts:
                id += 1
                engine.add(id, prompts.popleft(), params)
        now = time.perf_counter()
        steps.append(now - last)
        last = now
    if tokens != requests * answer:
        raise SystemExit(f"{tokens} tokens, not {requests * answer}; an answer ended early")
    return {
        "tok_s": round(tokens / (last - begin), 1),
        "step_ms": {"p50": load.percentile(steps, 0.5), "p99": load.percentile(steps, 0.99)},
    }


if __name__ == "__main__":
    main()
