"""One prefill and one decode backend against two mixed replicas, on the same arrivals.

    python bench/engine/apart.py --out bench/results/apart-h200-x2.json --shape 8b --device cuda
    python bench/engine/apart.py --transfers --device cuda --out bench/results/apart-transfers-h200-x2.json
    python bench/engine/apart.py                                    # small, on the CPU

Real processes with certificates and tokens, over loopback. Requests arrive at random (exponential gaps, a fixed seed)
at the same rate in both cases, so that throughput is equal as long as both keep up; what differs is the time between
tokens of running answers while prompts of others are computed. Reported: time per output token and to the first token
(median, 99th percentile), tokens a second, and of the pair bytes, seconds and GB/s of keys and values, the seconds that
compute the prompt included. A mixed replica takes every second request. Weights are random, of a Llama's shape, unless
`--model` names a checkpoint.

`--transfers` measures what lies between two backends alone: one computes a prompt and keeps it in its prefix cache, the
other fetches its blocks again and again, with its own cache emptied before each time. So a transfer computes one token,
and the seconds are of the handshake, the copies, the checksums and the way: memory that both share, and TLS. Keys and
values of a token are those of a Llama 3 8B; the rest of the model is small.
"""

import argparse
import asyncio
import json
import os
import random
import re
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: E402

from gateway.upstream.request_token import PrefillPlace, RequestSigner  # noqa: E402
from regions.identity.authority import CertificateAuthority, CredentialFiles  # noqa: E402
from regions.identity.identity import BackendIdentity, GatewayIdentity  # noqa: E402

CELL, TENANT, REGION = "bench", "acme", "eu-fr-par"
PATH = "/v1/completions"
SHAPES: dict[str, dict[str, Any]] = {
    "small": {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8,
              "num_key_value_heads": 4, "head_dim": 32, "vocab_size": 1024},
    "8b": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
           "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256},
    "kv": {"hidden_size": 1024, "intermediate_size": 1024, "num_hidden_layers": 32, "num_attention_heads": 8,
           "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 4096},
}  # fmt: skip


@dataclass(frozen=True)
class Load:
    """rate: requests a second. Prompts and answers in tokens."""

    requests: int
    rate: float
    prompt: int
    answer: int


@dataclass
class Seen:
    """Of one case. first, gaps: seconds to the first token of each answer, and between its tokens."""

    first: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    tokens: int = 0
    seconds: float = 0.0

    def row(self) -> dict[str, float]:
        return {
            "tpot_p50_ms": round(quantile(self.gaps, 0.5) * 1000, 2),
            "tpot_p99_ms": round(quantile(self.gaps, 0.99) * 1000, 2),
            "ttft_p50_ms": round(quantile(self.first, 0.5) * 1000, 1),
            "ttft_p99_ms": round(quantile(self.first, 0.99) * 1000, 1),
            "tokens_per_s": round(self.tokens / self.seconds, 1),
        }


BEGUN = time.perf_counter()


def told(what: str) -> None:
    """How far it is, for people who wait."""
    print(f"{time.perf_counter() - BEGUN:7.1f} s  {what}", file=sys.stderr, flush=True)


def quantile(values: list[float], share: float) -> float:
    """The nearest value at or above that share; 0 of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def write_checkpoint(folder: Path, shape: dict[str, Any], dtype: str, device: str = "cpu") -> Path:
    """A Llama with random weights, drawn on `device`, and without a tokenizer's use: prompts are token ids."""
    import torch
    from safetensors.torch import save_file
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    kind = {"bfloat16": torch.bfloat16, "float32": torch.float32}[dtype]
    torch.manual_seed(0)
    width, inner, head = shape["hidden_size"], shape["intermediate_size"], shape["head_dim"]
    heads, kv_heads = shape["num_attention_heads"] * head, shape["num_key_value_heads"] * head

    def drawn(*size: int) -> torch.Tensor:
        weight: torch.Tensor = torch.randn(*size, device=device) * size[-1] ** -0.5
        return weight.to(kind).cpu()

    def saved(tensors: dict[str, torch.Tensor], file: str) -> dict[str, str]:
        save_file(tensors, folder / file)
        return dict.fromkeys(tensors, file)

    folder.mkdir(parents=True)
    files: dict[str, str] = {}
    for layer in range(shape["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        sizes = {"self_attn.q_proj": (heads, width), "self_attn.k_proj": (kv_heads, width),
                 "self_attn.v_proj": (kv_heads, width), "self_attn.o_proj": (width, heads),
                 "mlp.gate_proj": (inner, width), "mlp.up_proj": (inner, width),
                 "mlp.down_proj": (width, inner)}  # fmt: skip
        tensors = {f"{at}{name}.weight": drawn(*size) for name, size in sizes.items()}
        tensors |= {
            f"{at}{name}.weight": torch.ones(width, dtype=kind)
            for name in ("input_layernorm", "post_attention_layernorm")
        }
        files |= saved(tensors, f"model-{layer:05}.safetensors")
    files |= saved(
        {
            "model.embed_tokens.weight": drawn(shape["vocab_size"], width),
            "model.norm.weight": torch.ones(width, dtype=kind),
        },
        "model-rest.safetensors",
    )
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "rms_norm_eps": 1e-5,
              "rope_theta": 500_000.0, "max_position_embeddings": 32768, "tie_word_embeddings": True,
              "eos_token_id": 0, "hidden_act": "silu", "torch_dtype": dtype, **shape}  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [*letters, *(f"w{number}" for number in range(shape["vocab_size"] - len(letters)))]
    tokenizer = Tokenizer(models.BPE({word: number for number, word in enumerate(words)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@dataclass(frozen=True)
class Served:
    """One running backend."""

    identity: BackendIdentity
    port: int
    transfer_port: int | None


class Cell:
    """What a cell has, for backends of one tenant."""

    def __init__(self, folder: Path, model: Path, options: list[str]) -> None:
        self.folder, self.model, self.options = folder, model, options
        self.authority = CertificateAuthority.open(folder / "ca", CELL)
        self.signer = RequestSigner(Ed25519PrivateKey.generate())
        self.public = self.signer.write_public(folder / "keys" / "request.pem")
        self.gateway = self._issued("gateway", GatewayIdentity(CELL, TENANT))
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.context.check_hostname = False
        self.context.load_verify_locations(self.gateway.root)
        self.context.load_cert_chain(self.gateway.certificate, self.gateway.key)

    def _issued(self, name: str, identity: Any) -> CredentialFiles:
        place = self.folder / name
        place.mkdir(exist_ok=True)
        return self.authority.issue(identity, place)

    @contextmanager
    def starting(self, name: str, role: str, card: int, *more: str) -> Iterator[Callable[[], Served]]:
        """What waits until it is ready."""
        identity = BackendIdentity(CELL, TENANT, REGION, name)
        files = self._issued(name, identity)
        line = [
            sys.executable, "-m", "backend", "serve", "--model", str(self.model), "--served-name", "bench",
            "--port", "0", "--role", role, "--transfer-timeout", "120", "--backend-id", name, "--tenant", TENANT,
            "--region", REGION, "--cert", str(files.certificate), "--key", str(files.key), "--ca", str(files.root),
            "--peer-uri", GatewayIdentity(CELL, TENANT).uri, "--request-key", str(self.public), *self.options, *more,
        ]  # fmt: skip
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": str(card)}
        log = self.folder / f"{name}.log"
        with (
            log.open("w") as errors,
            subprocess.Popen(line, stdout=subprocess.PIPE, stderr=errors, env=environment, cwd=ROOT) as process,
        ):

            def served() -> Served:
                assert process.stdout is not None
                said = process.stdout.readline()
                if not said:
                    raise SystemExit(f"{name} did not start:\n{log.read_text()[-2000:]}")
                ready = json.loads(said)
                told(f"{name} is ready")
                return Served(identity, ready["port"], ready.get("transfer_port"))

            try:
                yield served
            finally:
                process.terminate()

    def warnings(self, name: str) -> list[str]:
        """Of its log: why a transfer failed, or took another way."""
        found = [line for line in (self.folder / f"{name}.log").read_text().splitlines() if " WARNING " in line]
        return found[-5:]

    def head(self, to: Served, method: str, path: str, body: bytes, prefill: Served | None = None) -> bytes:
        place = None
        if prefill is not None and prefill.transfer_port is not None:
            place = PrefillPlace(
                prefill.identity.backend, prefill.identity.uri, "127.0.0.1", prefill.transfer_port, to.identity.uri
            )
        lines = self.signer.field(
            tenant=TENANT,
            backend=to.identity.backend,
            method=method,
            path=path,
            project="",
            decision="bench",
            digest=sha256(body).digest(),
            prefill=place,
        )
        return (
            f"{method} {path} HTTP/1.1\r\nhost: bench\r\nconnection: close\r\ncontent-length: {len(body)}\r\n"
            f"{lines}\r\n"
        ).encode()


async def got(cell: Cell, to: Served, path: str, method: str = "GET", body: bytes = b"") -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", to.port, ssl=cell.context)
    writer.write(cell.head(to, method, path, body) + body)
    found = await reader.read()
    writer.close()
    return found


async def measured_weights(cell: Cell, backend: Served) -> None:
    """Wait for the digest of its weights, without which nothing travels."""
    for _ in range(600):
        if b" 200 " in (await got(cell, backend, "/weights")).split(b"\r\n", 1)[0]:
            return
        await asyncio.sleep(0.5)
    raise SystemExit("the weights were not measured; read the backends' logs")


async def answered(cell: Cell, to: Served, prefill: Served | None, prompt: list[int], answer: int, seen: Seen) -> None:
    body = json.dumps({"model": "bench", "prompt": prompt, "max_tokens": answer, "stream": True, "temperature": 0,
                       "ignore_eos": True}).encode()  # fmt: skip
    begin = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", to.port, ssl=cell.context)
    writer.write(cell.head(to, "POST", PATH, body, prefill) + body)
    last: float | None = None
    async for line in reader:
        if line.startswith(b"data: {"):
            if b'"error"' in line:
                raise SystemExit(line.decode())
            now = time.perf_counter()
            if last is None:
                seen.first.append(now - begin)
            else:
                seen.gaps.append(now - last)
            last = now
            seen.tokens += 1
    writer.close()
    if last is None:
        raise SystemExit("a request got no token; read the backends' logs")


async def run(cell: Cell, pairs: list[tuple[Served, Served | None]], load: Load, vocabulary: int) -> Seen:
    """pairs: who answers, and who computes its prompts."""
    for to, prefill in pairs:
        for each in (to, prefill):
            if each is not None:
                await measured_weights(cell, each)
    draw = random.Random(7)
    prompts = [[draw.randrange(1, vocabulary) for _ in range(load.prompt)] for _ in range(load.requests + len(pairs))]
    for (to, prefill), prompt in zip(pairs, prompts, strict=False):  # kernels are compiled by the first
        await answered(cell, to, prefill, prompt, 4, Seen())
    seen, tasks, begin = Seen(), [], time.perf_counter()
    for number, prompt in enumerate(prompts[len(pairs) :]):
        to, prefill = pairs[number % len(pairs)]
        tasks.append(asyncio.create_task(answered(cell, to, prefill, prompt, load.answer, seen)))
        await asyncio.sleep(draw.expovariate(load.rate))
    await asyncio.gather(*tasks)
    seen.seconds = time.perf_counter() - begin
    return seen


async def transferred(cell: Cell, decode: Served) -> dict[str, float]:
    """What the decode backend has counted since its start."""
    shown = (await got(cell, decode, "/metrics")).decode()

    def metric(name: str, labels: str) -> float:
        return sum(float(found) for found in re.findall(rf"^{name}\{{[^}}]*{labels}[^}}]*\}} (\S+)$", shown, re.M))

    size = metric("domicile_backend_kv_transfer_bytes_total", 'direction="received"')
    seconds = metric("domicile_backend_kv_transfer_seconds_sum", 'direction="received"')
    return {
        "kv_bytes": size,
        "kv_seconds": round(seconds, 6),
        "kv_gb_per_s": round(size / seconds / 1e9, 3) if seconds else 0.0,
        "completed": metric("domicile_backend_kv_transfers_total", 'outcome="completed"'),
        "failed": metric("domicile_backend_kv_transfers_total", 'outcome="failed"'),
        "memory": metric("domicile_backend_kv_transfers_total", 'outcome="completed".*way="memory"'),
    }


WAYS = {"memory": ("--transfer-memory",), "tcp": ()}


async def moved(cell: Cell, decode: Served, prefill: Served, load: Load, vocabulary: int) -> dict[str, Any]:
    """One prompt, fetched `load.requests` times behind a first one that is computed."""
    for each in (prefill, decode):
        await measured_weights(cell, each)
    told("the weights are measured")
    prompt = [random.Random(11).randrange(1, vocabulary) for _ in range(load.prompt)]
    seen, gb_per_s, before = Seen(), list[float](), await transferred(cell, decode)
    computed: dict[str, float] = {}
    for number in range(load.requests + 1):
        if b" 200 " not in (await got(cell, decode, "/scrub", "POST", b"{}")).split(b"\r\n", 1)[0]:
            raise SystemExit("a backend was not scrubbed; read the backends' logs")
        await answered(cell, decode, prefill, prompt, 1, seen if number else Seen())
        now = await transferred(cell, decode)
        size, seconds = (now[name] - before[name] for name in ("kv_bytes", "kv_seconds"))
        if number:
            gb_per_s.append(size / max(seconds, 1e-9) / 1e9)
        else:
            computed = {"kv_bytes": size, "first_seconds": round(seconds, 4)}
        told(f"transfer {number} of {load.requests}: {size / 1e6:.0f} MB in {seconds:.3f} s")
        before = now
    return {
        **computed,
        "gb_per_s_p50": round(quantile(gb_per_s, 0.5), 3),
        "gb_per_s_best": round(max(gb_per_s), 3),
        "ttft_p50_ms": round(quantile(seen.first, 0.5) * 1000, 1),
        "completed": before["completed"],
        "completed_through_memory": before["memory"],
        "failed": before["failed"],
    }


def transfers(folder: Path, model: Path, options: list[str], load: Load, vocabulary: int) -> dict[str, Any]:
    """Both ways, one after the other, to backends of one card from one of another."""
    cell = Cell(folder, model, options)
    rows: dict[str, Any] = {}
    with ExitStack() as stack:
        starting = [stack.enter_context(cell.starting("prefill-1", "prefill", 0, *WAYS["memory"]))]
        starting += [stack.enter_context(cell.starting(f"decode-{way}", "decode", 1, *WAYS[way])) for way in WAYS]
        prefill, *decodes = [served() for served in starting]
        for way, decode in zip(WAYS, decodes, strict=True):
            rows[way] = asyncio.run(moved(cell, decode, prefill, load, vocabulary))
            rows[way]["warnings"] = cell.warnings(f"decode-{way}")
        rows["prefill_warnings"] = cell.warnings("prefill-1")
    return rows


def measured(folder: Path, model: Path, options: list[str], load: Load, vocabulary: int) -> dict[str, Any]:
    cell = Cell(folder, model, options)
    with ExitStack() as stack:
        starting = [
            stack.enter_context(cell.starting(name, role, card, "--transfer-memory"))
            for name, role, card in (("prefill-1", "prefill", 0), ("decode-1", "decode", 1))
        ]
        prefill, decode = (served() for served in starting)
        apart = asyncio.run(run(cell, [(decode, prefill)], load, vocabulary)).row()
        apart |= asyncio.run(transferred(cell, decode))
    with ExitStack() as stack:
        starting = [stack.enter_context(cell.starting(f"mixed-{n + 1}", "mixed", n)) for n in range(2)]
        mixed = [served() for served in starting]
        told("both mixed replicas are ready")
        together = asyncio.run(run(cell, [(each, None) for each in mixed], load, vocabulary)).row()
    return {"apart": apart, "mixed": together}


def given_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, help="a JSON file; default: printed only")
    parser.add_argument("--model", type=Path, help="a checkpoint; default: random weights of --shape")
    parser.add_argument("--transfers", action="store_true", help="measure transfers alone")
    parser.add_argument("--shape", choices=sorted(SHAPES), help="default: small, of transfers on cards kv")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--requests", type=int, help="default: 24, of transfers 8")
    parser.add_argument("--rate", type=float, default=4.0, help="requests a second")
    parser.add_argument("--prompt", type=int, help="tokens; default: 512, of transfers on cards 8000")
    parser.add_argument("--answer", type=int, default=32, help="tokens")
    parser.add_argument("--options", default="", help="more of `backend serve`, for all")
    given = parser.parse_args()
    on_cards = given.transfers and given.device == "cuda"
    given.shape = given.shape or ("kv" if on_cards else "small")
    given.prompt = given.prompt or (8000 if on_cards else 512)
    given.requests = given.requests or (8 if given.transfers else 24)
    return given


def main() -> None:
    given = given_arguments()
    load = Load(given.requests, given.rate, given.prompt, given.answer)
    dtype = "float32" if given.device == "cpu" else "bfloat16"
    options = ["--device", given.device]
    options += ["--threads", "1", "--kv-blocks", "2048"] if given.device == "cpu" else []
    if given.transfers and given.device == "cuda":  # few blocks, which are scrubbed each time, and few graphs
        options += ["--kv-blocks", "2048", "--max-model-len", "16384", "--gpu-memory", "0.4", "--max-num-seqs", "4"]
        options += ["--no-self-tuning"]
    options += given.options.split()
    with tempfile.TemporaryDirectory() as folder:
        model = given.model or write_checkpoint(Path(folder) / "model", SHAPES[given.shape], dtype, given.device)
        vocabulary = json.loads((model / "config.json").read_text())["vocab_size"]
        run_all = transfers if given.transfers else measured
        rows = run_all(Path(folder), model, options, load, vocabulary)
    result = {"model": str(given.model or given.shape), "device": given.device, "load": vars(load), **rows}
    print(json.dumps(result, indent=2))
    if given.out:
        given.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
