"""A prompt computed by one engine and answered by another: the tokens are those of one engine."""

from typing import Any

import msgspec
import pytest
import torch

from backend.engine.apart.frame import BlockFrame, Further, framed
from backend.engine.apart.statement import CacheLayout, Statement
from backend.engine.core.sampling import SamplingParams
from backend.errors import CannotSleep
from backend.models.decoders.decoder import Decoder
from tests.backend.engine.apart.moving import exported, fetched, finished, tokens_of
from tests.backend.tiny import generate, greedy, run, tiny_engine, tiny_model

PROMPTS = [[(7 * i + 3 * j) % 320 for j in range(length)] for i, length in enumerate((1, 2, 16, 17, 18, 33, 48, 150))]
LONG = PROMPTS[-1]


@pytest.fixture(scope="module")
def model() -> Decoder:
    return tiny_model()


@pytest.mark.parametrize(("block_size", "budget"), [(1, 64), (4, 16), (16, 512)])
def test_greedy_tokens_are_those_of_one_engine(model: Decoder, block_size: int, budget: int) -> None:
    sizes: dict[str, Any] = {
        "block_size": block_size,
        "num_blocks": 1024 // block_size,
        "max_num_batched_tokens": budget,
    }
    source, engine = tiny_engine(model, **sizes), tiny_engine(model, **sizes)
    for prompt in PROMPTS:
        assert fetched(source, engine, prompt, greedy(12))
        assert tokens_of(finished(engine)) == generate(tiny_engine(model, **sizes), [prompt])[0]
    for each in (source, engine):
        assert each.blocks.num_used == 0
        assert each.scrub() == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"temperature": 1.0, "seed": 7},
        {"temperature": 0.8, "seed": 8, "top_p": 0.9, "frequency_penalty": 0.7, "presence_penalty": 0.3},
        {"temperature": 1.0, "seed": 9, "repetition_penalty": 1.3, "min_p": 0.01},
        {"logit_bias": ((5, 9.0),), "min_tokens": 3},
    ],
)
def test_seeded_draws_and_penalties_are_those_of_one_engine(model: Decoder, changes: dict[str, object]) -> None:
    params = SamplingParams(**{"max_tokens": 24, "temperature": 0.0, "ignore_eos": True, **changes})  # type: ignore[arg-type]
    source, engine = tiny_engine(model), tiny_engine(model)
    assert fetched(source, engine, LONG, params)
    assert tokens_of(finished(engine)) == generate(tiny_engine(model), [LONG], params)[0]


def test_log_probabilities_of_the_answer_are_those_of_one_engine(model: Decoder) -> None:
    params = greedy(6, logprobs=3)
    source, engine, alone = tiny_engine(model), tiny_engine(model), tiny_engine(model)
    assert fetched(source, engine, LONG, params)
    alone.add(0, LONG, params)
    for found, expected in zip(finished(engine), finished(alone), strict=True):
        assert found.logprobs is not None and expected.logprobs is not None
        assert found.logprobs.rank == expected.logprobs.rank
        assert found.logprobs.logprob == pytest.approx(expected.logprobs.logprob, abs=1e-4)


def test_a_prompt_whose_log_probabilities_are_asked_for_is_computed_where_it_is_answered(model: Decoder) -> None:
    source, engine = tiny_engine(model), tiny_engine(model)
    assert fetched(source, engine, LONG, greedy(4, prompt_logprobs=1))
    assert source.stats.steps == 0
    progress = finished(engine)
    assert progress[0].prompt is not None and len(progress[0].prompt) == len(LONG) - 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_blocks_are_the_bytes_of_the_other_cache(dtype: torch.dtype) -> None:
    model = tiny_model().to(dtype)
    source, engine = tiny_engine(model), tiny_engine(model)
    assert source.layout is not None and source.layout.dtype == str(dtype).removeprefix("torch.")
    frames, further = exported(source, LONG)
    assert further is Further.NOTHING
    assert [frame.layer for frame in frames] == sorted(frame.layer for frame in frames[:2]) * 3  # of each chunk
    engine.add(0, LONG, greedy(1), fetches=True)
    engine.make_room()
    assert [engine.imports.write(0, frame) for frame in frames] == [""] * len(frames)
    pages = engine.runner.pages
    assert pages is not None
    table = engine.scheduler.waiting[0].block_table
    for frame in frames:
        ids = table[frame.first : frame.first + frame.count]
        assert pages.read(frame.layer, ids, pages.now()).take() == (frame.keys, frame.values)


def test_only_the_blocks_that_are_missing_are_computed_and_sent(model: Decoder) -> None:
    source, engine = tiny_engine(model), tiny_engine(model)
    generate(engine, [LONG[:80]])
    engine.add(5, LONG, greedy(4), fetches=True)
    (room,) = engine.make_room()
    assert (room.first, room.end) == (5, 10)
    frames, _ = exported(source, LONG, room.first)
    assert {frame.first for frame in frames} >= {5} and min(frame.first for frame in frames) == 5
    assert not any(engine.imports.write(5, frame) for frame in frames)
    assert engine.imports.end(5, whole=True)
    progress = finished(engine)
    assert progress[0].cached == 80
    assert tokens_of(progress, 5) == generate(tiny_engine(model), [LONG], greedy(4))[0]


def test_what_came_serves_the_next_prompt_with_the_same_beginning(model: Decoder) -> None:
    source, engine = tiny_engine(model), tiny_engine(model)
    assert fetched(source, engine, LONG, greedy(2))
    finished(engine)
    engine.add(1, [*LONG, 4], greedy(2), fetches=True)
    (room,) = engine.make_room()
    assert room.first == 9


def test_roots_of_two_projects_share_no_block_that_came(model: Decoder) -> None:
    source, engine = tiny_engine(model), tiny_engine(model)
    assert fetched(source, engine, LONG, greedy(2), cache_root=b"one")
    finished(engine)
    engine.add(1, LONG, greedy(2), fetches=True, cache_root=b"two")
    (room,) = engine.make_room()
    assert room.first == 0


def test_several_answers_to_a_prompt_share_the_blocks_that_came(model: Decoder) -> None:
    source, engine, alone = tiny_engine(model), tiny_engine(model), tiny_engine(model)
    params = [SamplingParams(max_tokens=8, temperature=1.0, seed=seed, ignore_eos=True) for seed in (1, 2)]
    for each in (engine, alone):
        each.add(0, LONG, params[0], fetches=each is engine)
        each.add(1, LONG, params[1], leader=0)
    engine.make_room()
    assert not engine.has_work
    frames, _ = exported(source, LONG)
    assert not any(engine.imports.write(0, frame) for frame in frames)
    assert engine.imports.end(0, whole=True)
    assert run(engine) == run(alone)
    assert engine.blocks.num_used == 0


def _other_layer(frame: BlockFrame) -> BlockFrame:
    return msgspec.structs.replace(frame, layer=1 - frame.layer)


def _flipped(frame: BlockFrame) -> BlockFrame:
    return msgspec.structs.replace(frame, values=bytes([frame.values[0] ^ 0x80]) + frame.values[1:])


def _shorter(frame: BlockFrame) -> BlockFrame:
    return framed(frame.layer, frame.first, frame.count, frame.keys[:-4], frame.values)


def _elsewhere(frame: BlockFrame) -> BlockFrame:
    return framed(frame.layer, frame.first + 1, frame.count, frame.keys, frame.values)


@pytest.mark.parametrize("spoilt", [_other_layer, _flipped, _shorter, _elsewhere])
def test_frames_that_do_not_fit_cost_all_and_the_prompt_is_computed_here(model: Decoder, spoilt: object) -> None:
    source, engine = tiny_engine(model), tiny_engine(model)
    assert not fetched(source, engine, LONG, greedy(12), through=spoilt)  # type: ignore[arg-type]
    assert engine.blocks.num_used == 0
    assert tokens_of(finished(engine)) == generate(tiny_engine(model), [LONG])[0]
    assert engine.scrub() == 0


def test_a_part_is_never_continued(model: Decoder) -> None:
    source, engine = tiny_engine(model), tiny_engine(model)
    engine.add(0, LONG, greedy(12), fetches=True)
    engine.make_room()
    frames, _ = exported(source, LONG)
    assert not any(engine.imports.write(0, frame) for frame in frames[:-1])
    assert not engine.imports.end(0, whole=True)
    assert tokens_of(finished(engine)) == generate(tiny_engine(model), [LONG])[0]


def test_an_aborted_prompt_leaves_no_byte_and_its_late_frames_are_dropped(model: Decoder) -> None:
    source, engine = tiny_engine(model), tiny_engine(model)
    engine.add(0, LONG, greedy(12), fetches=True)
    engine.make_room()
    frames, _ = exported(source, LONG)
    engine.imports.write(0, frames[0])
    engine.abort(0)
    assert engine.imports.write(0, frames[1]) == ""
    assert not engine.imports.end(0, whole=True)
    assert engine.blocks.num_used == 0 and not engine.scheduler.waiting
    assert engine.scrub() == 0


def test_the_source_holds_blocks_until_they_are_read_and_then_forgets_them(model: Decoder) -> None:
    source = tiny_engine(model, prefix_cache=False)
    source.add(1, LONG, greedy(1), exports=0)
    finished(source)
    assert source.blocks.num_used == 10
    with pytest.raises(CannotSleep):
        source.sleep()
    while True:
        taken = source.exports.take(1, 1)
        assert taken is not None
        if taken[1] is not Further.MORE:
            break
    assert source.blocks.num_used == 0
    assert source.scrub() == 0


def test_an_export_that_nobody_takes_is_dropped_by_an_abort(model: Decoder) -> None:
    source = tiny_engine(model)
    source.add(1, LONG, greedy(1), exports=0)
    finished(source)
    source.abort(1)
    assert source.blocks.num_used == 0
    assert source.exports.take(1, 1) == ([], Further.FAILED)


def test_a_prompt_that_is_preempted_while_it_is_exported_is_sent_whole(model: Decoder) -> None:
    source = tiny_engine(model, max_num_seqs=1, max_num_batched_tokens=32)
    source.add(1, LONG, greedy(1), exports=0, priority=1)
    source.step()
    source.add(2, [3] * 250, greedy(8), priority=0)
    frames, further = [], Further.MORE
    while further is Further.MORE:
        if source.has_work:
            source.step()
        if (taken := source.exports.take(1, 1 << 20)) is not None:
            frames += taken[0]
            further = taken[1]
    assert source.stats.preemptions > 0
    assert further is Further.NOTHING
    expected, _ = exported(tiny_engine(model, max_num_batched_tokens=32), LONG)
    assert sum(frame.count for frame in frames) == sum(frame.count for frame in expected)


def test_logits_that_are_no_numbers_end_an_export_without_its_end(model: Decoder) -> None:
    broken = tiny_model(seed=3)
    for parameter in broken.parameters():
        parameter.data.fill_(float("nan"))
    _, further = exported(tiny_engine(broken), LONG)
    assert further is Further.FAILED


def test_room_is_waited_for_and_kept_from_those_that_run(model: Decoder) -> None:
    engine, source = tiny_engine(model, num_blocks=16), tiny_engine(model)
    engine.add(0, [9] * 100, greedy(40))
    engine.step()
    engine.step()
    engine.add(1, LONG, greedy(4), fetches=True)
    assert engine.make_room() == []
    while engine.has_work:
        engine.step()
    (room,) = engine.make_room()
    assert (room.first, room.end) == (0, 10)
    frames, _ = exported(source, LONG)
    assert not any(engine.imports.write(1, frame) for frame in frames)
    assert engine.imports.end(1, whole=True)
    assert tokens_of(finished(engine), 1) == generate(tiny_engine(model), [LONG], greedy(4))[0]


def test_an_engine_with_nothing_but_prompts_to_come_has_no_work(model: Decoder) -> None:
    engine = tiny_engine(model)
    engine.add(0, LONG, greedy(4), fetches=True)
    assert not engine.has_work
    engine.make_room()
    assert not engine.has_work
    assert not engine.imports.end(0, whole=False)
    assert engine.has_work


def test_a_statement_names_what_differs() -> None:
    layout = CacheLayout(layers=2, block_size=16, key_bytes=64, value_bytes=64, dtype="float32")
    ours = Statement(computed_by="fp_1", layout=layout)
    assert ours.differs_from(ours) == ""
    assert "fp_2" in ours.differs_from(msgspec.structs.replace(ours, computed_by="fp_2"))
    for name, value in {"layers": 3, "block_size": 32, "key_bytes": 1, "value_bytes": 1, "dtype": "bfloat16"}.items():
        other = msgspec.structs.replace(ours, layout=msgspec.structs.replace(layout, **{name: value}))
        assert name in ours.differs_from(other)
