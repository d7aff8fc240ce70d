"""What a head that guesses from hidden states costs and saves, on one GPU.

    python bench/engine/heads.py out.json [--shape llama-8b] [--device cuda]

Weights are random, so no guess would be right: a given share is accepted by force, as in `speculation`. The tokens are
worthless, the times true. "states alone" makes no guesses, and shows what leaving and keeping the hidden states costs a
step; a share of 0 shows what guesses cost that are all wrong.
"""

import argparse
import json
import random
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

from bench.engine.gpu import machine  # noqa: E402
from bench.engine.speculation import generate  # noqa: E402
from bench.engine.workloads import SHAPES, ids  # noqa: E402

SHARES = (0.0, 0.5, 0.75, 1.0)
BATCHES = (1, 4, 16)
DRAFT_VOCABULARY = 32000  # of the heads that SafeAILab released


def write_models(folder: Path, shape: dict[str, Any]) -> tuple[str, str]:
    """Configurations of the model and of a head as wide as its layers; the way to guess, and the head's folder."""
    (folder / "config.json").write_text(json.dumps(shape))
    if shape.get("num_nextn_predict_layers"):
        return "mtp", ""
    head = folder / "head"
    head.mkdir()
    vocabulary = min(DRAFT_VOCABULARY, shape["vocab_size"])
    own = {"architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1, "draft_vocab_size": vocabulary}
    (head / "config.json").write_text(json.dumps({**shape, **own, "attention_bias": False}))
    return "eagle3", str(head)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--shape", default="llama-8b")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--answer", type=int, default=192)
    options = parser.parse_args()
    found = {"machine": machine(), "rows": measured(options.shape, options.device, options.answer)}
    options.out.write_text(json.dumps(found, indent=1) + "\n")


def measured(shape: str, device: str, answer: int) -> list[dict[str, Any]]:
    from backend.engine import engine as engine_module
    from backend.engine.core.speculation import GUESSES_BY_BATCH, Speculation, agreed
    from backend.engine.engine import Engine
    from backend.engine.gpu import verifier
    from backend.engine_config import EngineConfig
    from backend.models.checkpoints.checkpoint import Checkpoint

    with tempfile.TemporaryDirectory() as folder:
        kind, head = write_models(Path(folder), SHAPES[shape])
        engine = Engine.from_checkpoint(
            Checkpoint(Path(folder)),
            EngineConfig(
                model=folder,
                device=device,
                dtype="bfloat16" if device == "cuda" else "float32",
                load_format="dummy",
                max_model_len=2048,
                max_num_seqs=32,
                max_num_batched_tokens=2048,
                speculation=kind,
                draft_model=head,
                gpu_memory=0.8,
            ),
        )
    assert engine._draft is not None
    drafter, rng, rows = engine._draft.drafter, random.Random(1), []
    ways: list[tuple[str, Any, Any]] = [("states alone", ((max(BATCHES), 0),), agreed)]
    ways += [(f"accepted {share:.2f}", GUESSES_BY_BATCH, partial(forced, share)) for share in SHARES]
    for batch in BATCHES:
        prompts = [ids(rng, 64, engine.vocab_size) for _ in range(batch)]
        engine._speculation = None
        generate(engine, prompts, 8)
        plain, _ = generate(engine, prompts, answer)
        for name, by_batch, judge in ways:
            engine._speculation = speculation = Speculation(drafter, by_batch, observer=drafter, _trust=_Trusting())  # type: ignore[arg-type]
            engine_module.agreed = verifier.agreed = judge
            before = engine.stats.steps
            wall, _ = generate(engine, prompts, answer)
            steps = engine.stats.steps - before
            rows.append({
                "shape": shape, "head": kind, "batch": batch, "way": name,
                "plain_ms_a_step": round(plain / answer * 1e3, 3),
                "ms_a_step": round(wall / steps * 1e3, 3), "plain_tok_s": round(batch * answer / plain, 1),
                "tok_s": round(batch * answer / wall, 1), "speedup": round(plain / wall, 3),
                "proposed": speculation.proposed, "accepted": speculation.accepted,
            })  # fmt: skip
            print(rows[-1], flush=True)
        engine_module.agreed = verifier.agreed = agreed
    return rows


def forced(share: float, guesses: list[int], drawn: list[int | None]) -> int:
    """In the place of `speculation.agreed`: each guess is right with a chance of `share`. The same for the runner and
    the engine, which both ask of each check."""
    rng = random.Random(str(guesses))
    count = next((i for i in range(len(guesses)) if rng.random() >= share), len(guesses))
    return min(count, len(drawn) - 1)


class _Trusting(dict[int, Any]):
    """Nothing is known of a sequence whose guesses fail: it does not rest."""

    def get(self, key: int, default: Any = None) -> Any:
        return default


if __name__ == "__main__":
    main()
