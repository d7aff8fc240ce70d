"""Batch-invariant mode of the CPU engine: the same bits, however the engine computed them and on any processor."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from backend.engine.core.sampling import SamplingParams
from backend.engine.core.speculation import Drafter
from backend.engine.cpu.tokenwise_runner import TokenwiseRunner
from backend.engine.embedding.engine import EmbeddingEngine
from backend.engine.engine import Engine
from backend.engine_config import EngineConfig, size_cache
from backend.errors import ConfigError
from backend.models.checkpoints.checkpoint import Checkpoint
from backend.models.decoders.decoder import Decoder
from tests.backend.embedding_models import write_decoder
from tests.backend.engine.drafters import Oracle
from tests.backend.engine.test_batch_invariance import Told, answers_of, preempting, told_of
from tests.backend.tiny import tiny_model
from tests.backend.tiny_families import tiny_family

LENGTHS = (1, 7, 33, 60)
PROMPTS = [[(7 * i + 31 * n) % 320 for i in range(n)] for n in LENGTHS]
ANSWER = 6
TELLING = SamplingParams(max_tokens=ANSWER, temperature=0.0, logprobs=3, prompt_logprobs=2, ignore_eos=True)
SAMPLED = SamplingParams(max_tokens=ANSWER, temperature=0.8, top_p=0.9, seed=4, logprobs=3, ignore_eos=True)


def engine_of(model: Decoder, *, drafter: Drafter | None = None, **changes: Any) -> Engine:
    settings: dict[str, Any] = {"num_blocks": 64, "max_num_seqs": 8, "max_num_batched_tokens": 128}
    config = EngineConfig(model="", batch_invariant=True, **{**settings, **changes})
    return Engine(model, config, size_cache(config, model.config, 4), drafter=drafter)


def alone_of(model: Decoder, params: SamplingParams) -> Told:
    engine = engine_of(model, prefix_cache=False)
    assert isinstance(engine.runner, TokenwiseRunner)
    return [told_of(engine, [prompt], params)[0] for prompt in PROMPTS]


@pytest.fixture(scope="module")
def model() -> Decoder:
    return tiny_model(5, head_dim=48, hidden_size=150, intermediate_size=230, num_layers=2)


@pytest.mark.parametrize("params", [TELLING, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"prefix_cache": False},
        {"max_num_batched_tokens": 17},
        {"block_size": 8},
        {"block_size": 64, "num_blocks": 16},
        {"num_blocks": 12, "max_model_len": 128},
    ],
    ids=str,
)
def test_log_probabilities_have_the_same_bits_in_any_batch_chunk_block_and_from_the_cache(
    model: Decoder, params: SamplingParams, changes: dict[str, Any]
) -> None:
    alone = alone_of(model, params)
    engine = engine_of(model, **changes)
    assert told_of(engine, PROMPTS, params) == alone
    assert told_of(engine, PROMPTS, params, preempting(3)) == alone


@pytest.mark.parametrize("wrong", [0.0, 0.4])
def test_tokens_are_the_same_with_right_and_wrong_guesses(model: Decoder, wrong: float) -> None:
    plain = SamplingParams(max_tokens=24, temperature=0.8, seed=4, ignore_eos=True)
    alone = [answers_of(engine_of(model), [prompt], plain)[0] for prompt in PROMPTS]
    known = {id: [token or 0 for token in tokens] for id, tokens in enumerate(alone)}
    engine = engine_of(model, drafter=Oracle(known, wrong))
    assert answers_of(engine, PROMPTS, plain) == alone
    assert engine.stats.draft_tokens_accepted > 0


@pytest.mark.parametrize("family", ["gemma2", "gemma3"])
def test_other_families_keep_their_bits_too(family: str) -> None:
    model = tiny_family(family)
    prompts = [[token % model.config.vocab_size for token in prompt] for prompt in PROMPTS]
    alone = [told_of(engine_of(model, prefix_cache=False), [prompt], SAMPLED)[0] for prompt in prompts]
    assert told_of(engine_of(model, max_num_batched_tokens=17), prompts, SAMPLED) == alone


@pytest.mark.parametrize(
    "kind", [("Haswell", "avx2", "AVX2"), ("Prescott", "default", "SSE41")], ids=lambda kind: kind[0]
)
def test_bits_are_the_same_on_another_kind_of_processor(kind: tuple[str, str, str]) -> None:
    """OpenBLAS, ATen and oneDNN choose their kernels by these, as they would on such a processor."""
    names = ("OPENBLAS_CORETYPE", "ATEN_CPU_CAPABILITY", "DNNL_MAX_CPU_ISA")
    case = (
        f"{Path(__file__).name}::test_log_probabilities_have_the_same_bits_in_any_batch_chunk_block_and_from_the_cache"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "17 or 8-sampled", case],
        cwd=Path(__file__).parent,
        env={**os.environ, **dict(zip(names, kind, strict=True))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


def test_an_embedding_model_on_the_cpu_refuses_the_mode(tmp_path: Path) -> None:
    write_decoder(tmp_path)
    config = EngineConfig(model=str(tmp_path), batch_invariant=True)
    with pytest.raises(ConfigError, match="no batch-invariant mode on the CPU; start it without"):
        EmbeddingEngine.from_checkpoint(Checkpoint(tmp_path), config)
