"""Predictions beside what was measured, and refusals that name what would do."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from backend.cli.capacity_plan import table
from backend.engine_config import EngineConfig, weight_format
from backend.errors import ConfigError
from backend.models.config import ModelConfig, from_hugging_face
from backend.models.decoders.decoder import Decoder
from backend.models.heads.head_config import eagle3_config
from backend.models.sharding import of_rank
from backend.parallel.shard import Shard
from backend.planner.capacity_plan import Plan, plan, require_room
from backend.planner.cards import CARDS, GIB, H100, H200
from backend.planner.memory import draft_bytes, memory_of, parameters, table_bytes, weight_bytes
from backend.planner.roofline import Roofline, Step
from bench.engine.planner_check import MODELS, compared
from gateway.cli.app import app
from tests.backend.tiny import tiny_config
from tests.backend.tiny_deepseek import MODELS as MODELS_OF_DEEPSEEK
from tests.backend.tiny_families import FAMILIES, tiny_family
from tests.backend.tiny_heads import write_config

RESULTS = Path(__file__).parents[3] / "bench" / "results"
REPORTS: list[dict[str, Any]] = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("planner-*.json"))]
ROWS: list[tuple[str, dict[str, Any]]] = [
    (report["machine"]["card"], row) for report in REPORTS for row in report["rows"]
]
LLAMA = from_hugging_face(MODELS["llama-8b"])


def on_gpu(**changes: Any) -> EngineConfig:
    return EngineConfig(
        **{
            "model": "", "device": "cuda", "dtype": "bfloat16", "max_model_len": 8192, "max_num_seqs": 256,
            "max_num_batched_tokens": 8192, **changes,
        }
    )  # fmt: skip


def test_at_least_six_configurations_were_measured_on_each_card() -> None:
    assert [report["machine"]["card"] for report in REPORTS] == ["NVIDIA H100 80GB HBM3", "NVIDIA H200"]
    for report in REPORTS:
        assert len({(row["model"], json.dumps(row["settings"])) for row in report["rows"]}) == len(report["rows"]) >= 6


@pytest.mark.parametrize(("card", "row"), ROWS, ids=lambda value: str(value)[:90])
def test_peak_memory_is_within_a_twentieth_and_speed_within_a_fifth_of_what_was_measured(
    card: str, row: dict[str, Any]
) -> None:
    ratio = compared(row, card)
    assert 0.95 < ratio["peak"] < 1.05
    assert 0.99 < ratio["blocks"] < 1.01
    assert 0.8 < ratio["tokens_per_s"] < 1.2
    assert 0.8 < ratio["first_token"] < 1.2


@pytest.mark.parametrize(
    "shape", [{}, {"qkv_bias": True}, {"qk_norm": True, "tie_word_embeddings": False}, {"num_layers": 5}], ids=str
)
def test_weights_are_counted_as_the_model_has_them(shape: dict[str, Any]) -> None:
    config = tiny_config(**shape)
    real = sum(p.numel() for p in Decoder(config, device="meta").parameters())
    assert parameters(config).total == real
    assert weight_bytes(config, "bfloat16", None) == 2 * real


@pytest.mark.parametrize("name", MODELS_OF_DEEPSEEK)
def test_weights_of_latent_attention_and_shared_experts_are_counted_as_the_model_has_them(name: str) -> None:
    config = from_hugging_face(MODELS_OF_DEEPSEEK[name])
    model = Decoder(config, device="meta")
    assert parameters(config).total == sum(p.numel() for p in model.parameters())
    assert weight_bytes(config, "float32", None) == sum(p.numel() * 4 for p in model.parameters())
    share = of_rank(config, Shard(0, 2))
    assert parameters(share).total < 0.7 * parameters(config).total
    assert share.kv_bytes_per_token(2) == config.kv_bytes_per_token(2) == 3 * (32 + 16) * 2


@pytest.mark.parametrize("name", FAMILIES)
def test_weights_of_families_that_depart_from_llama_are_counted_as_they_have_them(name: str) -> None:
    config = tiny_family(name).config
    real = sum(p.numel() for p in Decoder(config, device="meta").parameters())
    assert parameters(config).total == real
    assert weight_bytes(config, "bfloat16", None) == 2 * real


def test_a_second_kind_of_positions_takes_a_second_table() -> None:
    one, two = (tiny_family(name, max_position_embeddings=4096).config for name in ("gemma2", "gemma3"))
    table = 4096 * 16 * (4 + 2)
    config = on_gpu(max_model_len=256, window_tables=False)
    assert table_bytes(two, config) - table_bytes(one, config) == table


def gpt_oss(context: int = 8192) -> ModelConfig:
    """The cache of gpt-oss-20b, and little beside."""
    shape: dict[str, Any] = {"num_layers": 24, "num_heads": 8, "num_kv_heads": 8, "head_dim": 64}
    return tiny_config(**shape, windows=(128, None) * 12, max_position=131072).within(context)


def test_layers_with_a_window_leave_room_for_about_twice_as_many_requests() -> None:
    one, several = (
        plan(gpt_oss(), on_gpu(window_tables=tables), H100, concurrency=32, prompt=512, answer=256)
        for tables in (False, True)
    )
    assert several.memory.blocks == pytest.approx(2 * one.memory.blocks, rel=0.01)
    assert several.memory.cache == pytest.approx(one.memory.cache, rel=0.01)
    assert (one.block_tables, several.block_tables) == (1, 2)
    assert "bytes a token in 2 tables" in table(several)
    assert "tables, of" not in table(one)
    assert 1.8 * one.max_concurrency < several.max_concurrency < 2 * one.max_concurrency


def test_stages_share_one_table_and_have_no_more_room() -> None:
    config = on_gpu(pipeline_parallel_size=2)
    assert memory_of(gpt_oss(), config, H100).blocks == memory_of(gpt_oss(), on_gpu(window_tables=False), H100).blocks


def test_what_a_plan_with_windows_says_would_do_does_and_one_more_does_not() -> None:
    def ask(context: int, concurrency: int) -> Plan:
        config = on_gpu(num_blocks=20_000, max_model_len=context)
        return plan(gpt_oss(context), config, H100, concurrency=concurrency, prompt=512, answer=256)

    refused = ask(8192, 50).refusal
    assert refused is not None
    found = re.search(r"(\d+) at once would do, a context of (\d+) would do", refused)
    assert found is not None
    most, longest = int(found[1]), int(found[2])
    assert ask(8192, most).refusal is None
    assert ask(8192, most + 1).refusal is not None
    assert ask(longest, 50).refusal is None
    assert ask(longest + 16, 50).refusal is not None


def test_counted_bytes_of_request_tables_grow_with_block_tables() -> None:
    one, two = (table_bytes(gpt_oss(), on_gpu(max_model_len=8192, window_tables=tables)) for tables in (False, True))
    assert two - one == on_gpu().max_num_seqs * 2 * (8192 // 16) * 4


def test_fp8_halves_the_products_and_the_cache() -> None:
    plain, half = memory_of(LLAMA, on_gpu(), H100), memory_of(LLAMA, on_gpu(quantization="fp8", kv_dtype="fp8"), H100)
    assert half.weights < 0.61 * plain.weights
    assert half.blocks > 2.2 * plain.blocks
    assert abs(half.peak - plain.peak) < GIB


def test_a_larger_batch_a_longer_context_and_a_longer_prompt_take_longer_and_more_requests_give_more() -> None:
    roof = Roofline(LLAMA, on_gpu(), H100)
    steps = [roof.seconds(Step(n, n * 512)) for n in (1, 2, 8, 32, 128, 256)]
    assert steps == sorted(steps)
    assert roof.seconds(Step(32, 32 * 4096)) > roof.seconds(Step(32, 32 * 512))
    assert roof.first_token(4096) > roof.first_token(512) > roof.first_token(64)
    rates = [n * 128 / roof.workload([(512, 128)] * n) for n in (1, 8, 32, 128)]
    assert rates == sorted(rates)


def test_a_prefix_in_common_is_computed_once() -> None:
    roof = Roofline(LLAMA, on_gpu(), H100)
    requests = [(2112, 64)] * 64
    assert roof.workload(requests, shared_prefix=2048) < 0.5 * roof.workload(requests)


def test_no_request_is_forgotten_when_they_do_not_all_fit_at_once() -> None:
    roof = Roofline(LLAMA, on_gpu(num_blocks=64), H100)
    one, four = roof.workload([(800, 100)]), roof.workload([(800, 100)] * 4)
    assert four > 3 * one


@pytest.mark.parametrize(
    ("concurrency", "changes", "message"),
    [
        (
            200,
            {},
            r"200 requests of 8192 tokens need 102400 KV blocks of 16 tokens, and \d+ fit; 55 at once would do, a",
        ),
        (100, {}, "so would an FP8 cache"),
        (1, {"gpu_memory": 0.15}, "the weights take 14.96 GiB .* and leave no room; fp8 weights take 8.46 GiB"),
        (1, {"num_blocks": 50_000}, r"50000 KV blocks do not fit; 28\d\d\d would"),
    ],
    ids=["too many", "fp8 helps", "weights", "blocks"],
)
def test_a_refusal_names_the_number_that_would_do(concurrency: int, changes: dict[str, Any], message: str) -> None:
    made = plan(LLAMA, on_gpu(**changes), H100, concurrency=concurrency, prompt=512, answer=256)
    assert made.refusal
    assert re.search(message, made.refusal), made.refusal


def test_what_was_said_to_do_does() -> None:
    assert plan(LLAMA, on_gpu(), H100, concurrency=55, prompt=512, answer=256).refusal is None
    assert plan(LLAMA, on_gpu(), H100, concurrency=56, prompt=512, answer=256).refusal


@pytest.mark.parametrize(
    ("changes", "lengths", "card", "message"),
    [
        ({"max_model_len": 200_000}, (1, 512, 256), "h100", "beyond the model's, 131072"),
        ({}, (1, 8000, 256), "h100", "do not fit into a context of 8192"),
        ({}, (0, 512, 256), "h100", "at least 1"),
        (
            {"quantization": "fp8"},
            (1, 512, 256),
            "a100-80gb",
            "A100.* cannot multiply fp8 weights; plan with --quantization none",
        ),
        ({"kv_dtype": "fp8"}, (1, 512, 256), "a100-40gb", "A100.* has no FP8 for the KV cache; plan without"),
    ],
)
def test_a_plan_that_contradicts_itself_is_refused(
    changes: dict[str, Any], lengths: tuple[int, int, int], card: str, message: str
) -> None:
    concurrency, prompt, answer = lengths
    with pytest.raises(ConfigError, match=message):
        plan(LLAMA, on_gpu(**changes), CARDS[card], concurrency=concurrency, prompt=prompt, answer=answer)


def test_a_start_that_cannot_fit_is_refused_and_a_close_one_left_to_the_measuring_start() -> None:
    def ask(blocks: int) -> None:
        require_room(LLAMA, on_gpu(num_blocks=blocks), H100, memory=H100.memory, used=H100.reserved)

    fits = memory_of(LLAMA, on_gpu(), H100).blocks
    ask(fits)
    ask(fits + 1000)  # 2 GB: within a twentieth of the card
    with pytest.raises(ConfigError, match=f"about .* {fits} blocks"):
        ask(fits + 3000)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(MODELS["llama-8b"]))
    return tmp_path


def test_the_command_prints_a_table_and_the_same_as_json(folder: Path) -> None:
    command = ["plan", "--model", str(folder), "--context", "8192", "--concurrency", "32"]
    shown, said = CliRunner().invoke(app, command), CliRunner().invoke(app, [*command, "--json"])
    assert (shown.exit_code, said.exit_code) == (0, 0)
    made = json.loads(said.stdout)
    assert f"{made['memory']['blocks']} blocks" in shown.stdout
    assert "it fits" in shown.stdout
    assert made["refusal"] is None
    assert made["memory"]["peak"] < H100.memory


def test_the_command_ends_with_1_where_it_cannot_be(folder: Path) -> None:
    refused = CliRunner().invoke(app, ["plan", "--model", str(folder), "--context", "8192", "--concurrency", "500"])
    assert refused.exit_code == 1
    assert "refused: 500 requests" in refused.stdout
    unknown = CliRunner().invoke(app, ["plan", "--model", str(folder), "--gpu", "tpu"])
    assert unknown.exit_code == 2
    assert "name one of h100" in unknown.output


def test_other_cards_are_said_to_be_scaled(folder: Path) -> None:
    shown = CliRunner().invoke(app, ["plan", "--model", str(folder), "--context", "8192", "--gpu", "a100-80gb"])
    assert "scaled from an H100, not measured" in shown.stdout
    measured = CliRunner().invoke(app, ["plan", "--model", str(folder), "--context", "8192", "--gpu", "h200"])
    assert "scaled" not in measured.stdout
    assert isinstance(LLAMA, ModelConfig)


QWEN3_30B = {
    "architectures": ["Qwen3MoeForCausalLM"], "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32,
    "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 6144, "moe_intermediate_size": 768,
    "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": True, "vocab_size": 151936,
    "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "tie_word_embeddings": False,
}  # fmt: skip


def test_a_mixtures_parameters_are_counted_in_all_and_for_a_token() -> None:
    """Qwen3-30B-A3B: its card says 30.5 billion, of which 3.3 are active."""
    weights = parameters(from_hugging_face(QWEN3_30B))
    assert weights.total == pytest.approx(30.53e9, rel=1e-3)
    assert weights.active == pytest.approx(3.35e9, rel=5e-3)
    layer = 2048 * (4096 + 1024) + 4096 * 2048 + 128 * 2048
    assert weights.products == 48 * layer
    assert weights.experts == 48 * 128 * 3 * 2048 * 768


def test_layers_of_a_mixture_that_are_dense_count_as_such() -> None:
    mixed = parameters(from_hugging_face(QWEN3_30B))
    some = parameters(from_hugging_face(QWEN3_30B | {"mlp_only_layers": [0, 47]}))
    assert some.experts == mixed.experts * 46 // 48
    assert some.products - mixed.products == 2 * (3 * 2048 * 6144 - 128 * 2048)


def test_experts_take_what_their_format_takes_and_stay_dense_where_it_has_no_grouped_products() -> None:
    model = from_hugging_face(QWEN3_30B)
    plain = weight_bytes(model, "bfloat16", None)
    assert plain == 2 * parameters(model).total
    fp8 = weight_bytes(model, "bfloat16", "fp8")
    assert 0.5 * plain < fp8 < 0.53 * plain
    kept = {"quant_method": "compressed-tensors", "ignore": ["lm_head", "re:.*experts.*"], "config_groups": {
        "group_0": {"targets": ["Linear"], "weights": {"type": "float", "num_bits": 8, "strategy": "channel"}}
    }}  # fmt: skip
    some = weight_bytes(from_hugging_face(QWEN3_30B | {"quantization_config": kept}), "bfloat16", None)
    assert some - fp8 == pytest.approx(parameters(model).experts, rel=0.01)
    int8 = {"config_groups": {"group_0": {
        "targets": ["Linear"], "weights": {"type": "int", "num_bits": 8, "strategy": "channel"},
        "input_activations": {"type": "int", "num_bits": 8},
    }}, "quant_method": "compressed-tensors"}  # fmt: skip
    dense_experts = weight_bytes(from_hugging_face(QWEN3_30B | {"quantization_config": int8}), "bfloat16", None)
    assert dense_experts > 2 * parameters(model).experts


def test_a_mixture_is_slower_with_more_rows_since_they_meet_more_experts() -> None:
    model = from_hugging_face(QWEN3_30B)
    roof = Roofline(model, on_gpu(), H200)
    seconds = [roof.seconds(Step(rows, rows * 100)) for rows in (1, 8, 64)]
    dense = Roofline(from_hugging_face(MODELS["llama-8b"]), on_gpu(), H200)
    assert seconds[0] < dense.seconds(Step(1, 100))  # 3 billion for each token, not 8
    assert seconds[0] * 2 < seconds[1] < seconds[2]
    assert seconds[2] > dense.seconds(Step(64, 6400))  # all 30 are read


def test_a_mixture_is_planned_with_both_numbers_of_parameters(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN3_30B))
    shown = CliRunner().invoke(app, ["plan", "--model", str(tmp_path), "--context", "8192", "--gpu", "h200"])
    assert "30.53 billion, of which 3.35 for each token" in shown.stdout
    assert "it fits" in shown.stdout
    made = CliRunner().invoke(app, ["plan", "--model", str(tmp_path), "--context", "8192", "--json"])
    assert json.loads(made.stdout)["active_parameters"] < json.loads(made.stdout)["parameters"] / 9


AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}


def test_four_bit_weights_are_counted_as_they_are_stored_and_kept_modules_in_full() -> None:
    stored = from_hugging_face(MODELS["llama-8b"] | {"quantization_config": AWQ})
    products = parameters(stored).products
    packed = weight_bytes(stored, "bfloat16", None)
    assert packed == products // 2 + products // 32 + 2 * (parameters(stored).total - products)
    assert weight_bytes(stored, "bfloat16", "none") == weight_bytes(LLAMA, "bfloat16", None)
    kept = {"quantization_config": AWQ | {"modules_to_not_convert": ["lm_head", "mlp.down_proj"]}}
    down = 32 * 4096 * 14336
    partly = weight_bytes(from_hugging_face(MODELS["llama-8b"] | kept), "bfloat16", None)
    assert partly - packed == 2 * down - down // 2 - down // 32


def test_four_bit_weights_leave_more_room_and_decode_faster_on_a_card_that_has_no_fp8_too() -> None:
    stored = from_hugging_face(MODELS["llama-8b"] | {"quantization_config": AWQ})
    for card in CARDS.values():
        dense, packed = Roofline(LLAMA, on_gpu(), card), Roofline(stored, on_gpu(), card)
        assert packed.seconds(Step(1, 512)) < 0.75 * dense.seconds(Step(1, 512))
        assert memory_of(stored, on_gpu(), card).blocks > memory_of(LLAMA, on_gpu(), card).blocks


@pytest.mark.parametrize(
    ("stored", "quantization", "message"),
    [
        (True, "fp8", "the checkpoint's weights are awq; leave --quantization out"),
        (True, "gptq", "quantization gptq needs a checkpoint that is stored so"),
        (False, "awq", "quantization awq needs a checkpoint that is stored so"),
    ],
)
def test_a_format_that_the_checkpoint_cannot_be_brought_into_is_refused(
    stored: bool, quantization: str, message: str
) -> None:
    model = from_hugging_face(MODELS["llama-8b"] | ({"quantization_config": AWQ} if stored else {}))
    with pytest.raises(ConfigError, match=message):
        plan(model, on_gpu(quantization=quantization), H100, concurrency=1, prompt=512, answer=256)


def test_four_bit_weights_and_a_mode_that_they_have_no_product_for_are_refused_in_words() -> None:
    model = from_hugging_face(MODELS["llama-8b"] | {"quantization_config": AWQ})
    with pytest.raises(ConfigError, match="products of awq weights depend on the batch; choose --quantization none"):
        plan(model, on_gpu(batch_invariant=True), H100, concurrency=1, prompt=512, answer=256)
    free = on_gpu(batch_invariant=True, quantization="none")
    assert plan(model, free, H100, concurrency=1, prompt=512, answer=256).refusal is None


LLAMA_70B = from_hugging_face(
    MODELS["llama-8b"]
    | {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64}
)


def divided(size: int, **changes: Any) -> Any:
    config = on_gpu(tensor_parallel_size=size, **changes)
    return plan(LLAMA_70B, config, H100, concurrency=8, prompt=512, answer=256)


def test_memory_is_of_each_card_and_the_smallest_number_of_cards_is_named() -> None:
    alone = divided(1)
    assert "the weights take 131.42 GiB" in alone.refusal
    assert alone.refusal.endswith("; on 4 cards it fits (--tensor-parallel-size 4)"), alone.refusal
    assert divided(2).refusal is not None  # 66 GiB of 73 and no room for the cache that was asked for
    assert alone.fewest_cards == divided(2).fewest_cards == 4
    four, eight = divided(4), divided(8)
    assert eight.fewest_cards == 4
    assert four.refusal is None and eight.refusal is None
    assert four.memory.weights == pytest.approx(weight_bytes(LLAMA_70B, "bfloat16", None) / 4, rel=0.01)
    assert four.kv_bytes_per_token == 2 * eight.kv_bytes_per_token
    assert four.parameters == eight.parameters == alone.parameters


def test_more_cards_are_faster_though_by_less_than_their_number() -> None:
    two, four = (divided(size, gpu_memory=1.0, max_model_len=1024) for size in (2, 4))
    assert 1.2 < two.step_ms / four.step_ms < 2
    assert two.first_token_ms > four.first_token_ms


TWO = json.loads((RESULTS / "engine-h200-x2.json").read_text())
LOADS = {  # requests, prompt, answer
    "decode batch 1, 128/256": (1, 128, 256), "decode batch 32, 128/256": (32, 128, 256),
    "decode batch 128, 128/256": (128, 128, 256), "first token, prompt 128": (1, 128, 1),
    "first token, prompt 1024": (1, 1024, 1), "first token, prompt 4096": (1, 4096, 1),
    "prefill 32 x 4096": (32, 4096, 1), "256 requests 512/256": (256, 512, 256),
}  # fmt: skip


@pytest.mark.parametrize(("run", "model"), [("llama-8b:bf16 tp2", LLAMA), ("llama-70b:bf16 tp2", LLAMA_70B)], ids=str)
def test_two_cards_are_within_a_tenth_of_what_was_measured(run: str, model: ModelConfig) -> None:
    config = on_gpu(tensor_parallel_size=2)
    share = of_rank(model, Shard(0, 2))
    assert memory_of(share, config, H200).blocks == pytest.approx(TWO["runs"][run]["blocks"], rel=0.03)
    roof = Roofline(share, config, H200)
    rows = {row["name"]: row for row in TWO["runs"][run]["rows"] if row["name"] in LOADS}
    assert len(rows) >= 7
    for name, row in rows.items():
        count, prompt, answer = LOADS[name]
        seconds = roof.workload([(prompt, answer)] * count)
        amount = {"ms": 0, "prompt tok/s": count * prompt, "output tok/s": count * answer}[row["unit"]]
        predicted = amount / seconds if amount else seconds * 1e3
        assert predicted == pytest.approx(row["value"], rel=0.11), name


def test_a_model_that_does_not_divide_is_refused_with_the_sizes_that_do() -> None:
    with pytest.raises(ConfigError, match=r"64 heads do not divide among 3 ranks; choose 1, 2, 4, 8 or 16"):
        divided(3)


def test_the_command_plans_for_several_cards(folder: Path) -> None:
    command = ["plan", "--model", str(folder), "--context", "8192", "--tensor-parallel-size", "2"]
    shown = CliRunner().invoke(app, command)
    assert shown.exit_code == 0, shown.output
    assert "2 × NVIDIA H100" in shown.stdout
    refused = CliRunner().invoke(app, [*command[:-1], "5"])
    assert refused.exit_code == 1 and "32 heads do not divide among 5 ranks" in refused.output


DEEPSEEK_V3 = MODELS_OF_DEEPSEEK["v3"] | {
    "hidden_size": 7168, "intermediate_size": 18432, "num_hidden_layers": 61, "num_attention_heads": 128,
    "num_key_value_heads": 128, "vocab_size": 129280, "max_position_embeddings": 163840, "kv_lora_rank": 512,
    "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "n_group": 8,
    "moe_intermediate_size": 2048, "n_routed_experts": 256, "num_experts_per_tok": 8, "first_k_dense_replace": 3,
    "topk_group": 4, "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096},
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"},
}  # fmt: skip


def test_deepseek_v3_is_counted_as_its_card_says_and_its_cache_holds_latents() -> None:
    """671 billion parameters, of which 37 are active, without the layer that predicts a second token; 512 + 64 numbers
    a token and layer."""
    model = from_hugging_face(DEEPSEEK_V3)
    weights = parameters(model)
    assert weights.total == pytest.approx(671e9, rel=1e-3)
    assert weights.active == pytest.approx(37.6e9, rel=0.01)
    assert model.kv_bytes_per_token(2) == 61 * 576 * 2
    whole = weight_bytes(model, "bfloat16", None)
    assert 671e9 < whole < 1.02 * 671e9 + 129280 * 7168 * 2 + 61 * model.expansion_numbers * 2
    made = plan(model, on_gpu(max_model_len=8192, tensor_parallel_size=8), H200, concurrency=32, prompt=512, answer=256)
    assert made.refusal is None
    with pytest.raises(ConfigError, match="latents in FP8 are not computed; leave --kv-dtype out"):
        plan(model, on_gpu(kv_dtype="fp8"), H200, concurrency=1, prompt=512, answer=256)
    assert plan(model, on_gpu(max_model_len=8192), H200, concurrency=1, prompt=512, answer=256).fewest_cards == 8


def test_many_heads_over_few_bytes_are_bound_by_their_products() -> None:
    model = from_hugging_face(DEEPSEEK_V3)
    roof = Roofline(of_rank(model, Shard(0, 8), weight_format(on_gpu(), model)), on_gpu(), H200)
    some, more = (roof.seconds(Step(64, 64 * length)) for length in (1024, 8192))
    assert more - some > 64 * 7168 * model.kv_bytes_per_token(2) / H200.cache_bandwidth * 0.99


def test_a_smaller_model_that_guesses_takes_its_weights_and_its_cache_from_the_others(tmp_path: Path) -> None:
    small = from_hugging_face(MODELS["qwen3-0.6b"])
    config = on_gpu(speculation="model", draft_model="small", draft_memory=2 << 30)
    asked = {"concurrency": 32, "prompt": 512, "answer": 256}
    alone, both = (plan(LLAMA, config, H200, draft=draft, **asked) for draft in (None, small))
    assert (alone.memory.draft, both.memory.reserved) == (0, alone.memory.reserved)
    assert both.memory.draft > weight_bytes(small, "bfloat16", None) + config.draft_memory
    taken = alone.memory.cache - both.memory.cache
    assert abs(taken - both.memory.draft) < 2 * config.block_size * alone.kv_bytes_per_token
    assert both.memory.peak == pytest.approx(alone.memory.peak, rel=1e-3)
    for name in ("large", "small"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(QWEN3_30B if name == "large" else MODELS["qwen3-0.6b"]))
    arguments = ["plan", "--model", str(tmp_path / "large"), "--context", "8192", "--gpu", "h200"]
    shown = CliRunner().invoke(app, [*arguments, "--draft-model", str(tmp_path / "small"), "--draft-memory", "2"])
    assert "its cache included" in shown.stdout
    assert "draft" not in CliRunner().invoke(app, arguments).stdout


def test_a_host_cache_is_counted_beside_the_card(tmp_path: Path) -> None:
    asked = {"concurrency": 32, "prompt": 512, "answer": 256}
    config = on_gpu(host_cache_bytes=10 << 30)
    found, without = (plan(LLAMA, each, H200, **asked) for each in (config, on_gpu()))
    block = config.block_size * found.kv_bytes_per_token
    assert found.memory.host_blocks == (10 << 30) // block
    assert found.memory.host == found.memory.host_blocks * block
    assert (found.memory.peak, without.memory.host) == (without.memory.peak, 0)
    with pytest.raises(ConfigError, match=f"to at least {block}, or to 0"):
        plan(LLAMA, on_gpu(host_cache_bytes=block - 1), H200, **asked)
    (tmp_path / "config.json").write_text(json.dumps(MODELS["qwen3-0.6b"]))
    arguments = ["plan", "--model", str(tmp_path), "--context", "8192"]
    shown = CliRunner().invoke(app, [*arguments, "--host-cache-bytes", str(1 << 30)])
    assert "host cache           1.00 GiB of the host's memory: 585 blocks, 9360 tokens" in shown.stdout
    assert "host cache" not in CliRunner().invoke(app, arguments).stdout


def test_a_head_takes_its_tables_its_layer_and_the_hidden_states(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "config.json").write_text(json.dumps(MODELS["llama-8b"]))
    base = from_hugging_face(MODELS["llama-8b"])
    shape = {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 14336}
    head = eagle3_config(write_config(tmp_path / "head", base, draft_vocab_size=32000, **shape), base)
    config = on_gpu(speculation="eagle3", draft_model="head", draft_memory=1 << 30)
    hidden, kv = base.hidden_size, 8 * 128
    layer = (hidden + 2 * kv) * 2 * hidden + hidden * hidden + 3 * hidden * 14336
    numbers = layer + 3 * hidden * hidden + (base.vocab_size + 32000) * hidden
    states = config.max_num_batched_tokens * 3 * hidden
    found = draft_bytes(config, head) - (1 << 30)
    assert 2 * (numbers + states) < found < 2 * (numbers + states) + (1 << 30)
    arguments = ["plan", "--model", str(tmp_path / "base"), "--context", "8192", "--gpu", "h200"]
    shown = CliRunner().invoke(app, [*arguments, "--speculation", "eagle3", "--draft-model", str(tmp_path / "head")])
    assert "its cache included" in shown.stdout
    none = CliRunner().invoke(app, [*arguments, "--speculation", "mtp"])
    assert "no layer for multi-token prediction" in none.stderr
