"""Public bugs of other engines, each as a test of what must not happen here.

Named after the reports: vLLM and SGLang issue numbers, as collected before this engine was written.
"""

from collections.abc import Callable
from typing import Any

import pytest

from backend.answer.answers import content_of
from backend.chat.choice import Choice, TextOptions
from backend.chat.stop_strings import StopStrings
from backend.engine.core.block_manager import BlockManager
from backend.engine.core.progress import Finish, Progress
from backend.engine.core.sampling import SamplingParams
from backend.engine.core.sequence import Sequence
from backend.engine.engine import Engine
from backend.errors import ContextLengthExceeded, InvalidRequest
from backend.models.checkpoints.checkpoint import Checkpoint
from backend.models.checkpoints.tokenizer import TextModel
from backend.models.decoders.decoder import Decoder
from tests.backend.tiny import generate, greedy, tiny_engine

PROMPTS = [[(7 * i + 3 * j) % 320 for j in range(length)] for i, length in enumerate((5, 16, 17, 33))]
SMALL = {"block_size": 4, "num_blocks": 16, "max_model_len": 64}


@pytest.fixture(scope="module")
def alone(model: Decoder) -> list[list[int]]:
    return [generate(tiny_engine(model), [p])[0] for p in PROMPTS]


@pytest.fixture(scope="module")
def text_model(folder: Any) -> TextModel:
    return Checkpoint(folder).text


def finished(engine: Engine, meanwhile: Callable[[int], None] = lambda step: None) -> dict[int, list[Progress]]:
    found: dict[int, list[Progress]] = {}
    step = 0
    while engine.has_work:
        for item in engine.step():
            found.setdefault(item.id, []).append(item)
        meanwhile(step)
        step += 1
        assert step < 2000, "it hangs"
    return found


def tokens(items: list[Progress]) -> list[int | None]:
    return [item.token for item in items]


class TestAPromptFoundInTheCacheDoesNotChangeTheAnswer:  # vllm 7845
    def test_it(self, model: Decoder, alone: list[list[int]]) -> None:
        engine = tiny_engine(model, block_size=4)
        assert [generate(engine, PROMPTS) for _ in range(3)] == [alone] * 3


class TestABlockIsNotUsedAfterItWasFreedUnderPressure:  # vllm 37076
    def test_it(self, model: Decoder, alone: list[list[int]]) -> None:
        engine = tiny_engine(model, **SMALL)
        for _ in range(3):
            assert generate(engine, PROMPTS) == alone
        assert engine.stats.preemptions > 0


class TestGreedyAnswersDoNotDependOnCorruptBlocks:  # vllm 39146
    def test_it(self, model: Decoder, alone: list[list[int]]) -> None:
        engine = tiny_engine(model, **SMALL, prefix_cache=False)
        assert [generate(engine, PROMPTS) for _ in range(4)] == [alone] * 4


class TestCachedTokensAreNotCountedBeforeTheRequestRuns:  # vllm 17305
    def test_it(self, model: Decoder) -> None:
        engine = tiny_engine(model, **SMALL)
        generate(engine, [PROMPTS[1]])
        engine.add(5, PROMPTS[3], greedy(20), priority=-1)
        engine.add(6, PROMPTS[1], greedy(4))
        engine.step()
        generate_evicts = finished(engine)
        assert {item.cached for item in generate_evicts[6]} <= {0, 4, 8, 12}
        assert len({item.cached for item in generate_evicts[6]}) == 1


class TestAPrefillThatResumesBehindCachedTokensIsNotCorrupt:  # tenstorrent 415
    @pytest.mark.parametrize("budget", [4, 5, 7])
    def test_it(self, model: Decoder, alone: list[list[int]], budget: int) -> None:
        engine = tiny_engine(model, block_size=4, max_num_batched_tokens=budget, max_num_seqs=2)
        generate(engine, [PROMPTS[3][:20]])
        assert generate(engine, [PROMPTS[3]])[0] == alone[3]
        assert engine.stats.prefix_hits >= 16


class TestPagesOfAnAbortedPrefillAreNotFoundAsGarbage:  # sglang 38319, 24221
    def test_it(self, model: Decoder, alone: list[list[int]]) -> None:
        engine = tiny_engine(model, block_size=4, max_num_batched_tokens=8, max_num_seqs=2)
        for steps in (1, 2, 3):
            engine.add(50, PROMPTS[3], greedy(12))
            for _ in range(steps):
                engine.step()
            engine.abort(50)
        assert generate(engine, [PROMPTS[3]])[0] == alone[3]


class TestGuessesOverASharedPrefixDoNotDiverge:  # sglang 24175, vllm 53912
    def test_it(self, model: Decoder) -> None:
        prompts = [[5, 6, 7] * 8 + [i] for i in range(3)]
        plain = generate(tiny_engine(model, block_size=4), prompts, greedy(30))
        guessing = tiny_engine(model, block_size=4, speculation="ngram")
        assert [generate(guessing, prompts, greedy(30)) for _ in range(2)] == [plain] * 2


class TestARecomputedAnswerIsNotIncomplete:  # vllm 16832, 26385, 28787
    def test_it(self, model: Decoder, alone: list[list[int]]) -> None:
        engine = tiny_engine(model, block_size=4, max_num_batched_tokens=16)

        def preempt(step: int) -> None:
            if engine.scheduler.running and step % 3 == 2:
                engine.scheduler.preempt(engine.scheduler.running[0])

        for id, prompt in enumerate(PROMPTS):
            engine.add(id, prompt, greedy(12))
        found = finished(engine, preempt)
        assert [tokens(found[id]) for id in range(4)] == alone


class TestAnAbortInFlightDoesNotStopTheLoop:  # vllm 6586, sglang 14972
    def test_it(self, model: Decoder, alone: list[list[int]]) -> None:
        engine = tiny_engine(model, **SMALL)
        for id, prompt in enumerate(PROMPTS):
            engine.add(id, prompt, greedy(12))
        first = {item.id: item.token for item in engine.step()}
        engine.abort(0)
        engine.abort(0)
        found = finished(engine)
        said = [[first[id], *tokens(found[id])] if id in first else tokens(found[id]) for id in (1, 2, 3)]
        assert said == alone[1:]


class TestBlocksOfAbortedSequencesDoNotLeak:  # vllm 46283, sglang 6778, 18701
    def test_it(self, model: Decoder) -> None:
        engine = tiny_engine(model, **SMALL)
        for round in range(30):
            for id, prompt in enumerate(PROMPTS):
                engine.add(id, prompt, greedy(12), leader=None)
            for _ in range(round % 4):
                engine.step()
            for id in range(4):
                engine.abort(id)
        assert engine.blocks.num_used == 0
        assert not engine.has_work


class TestTheEndOfAStreamIsNotCutOffByAStopStringThatNeverCame:  # vllm 8468
    def test_it(self) -> None:
        stops = StopStrings(["END."])
        assert stops.feed("text EN") + stops.feed("D") + stops.flush() == "text END"


class TestAMarkerIsNotSplitByTheHoldBack:  # vllm 45636
    def test_what_is_held_is_shown_whole(self) -> None:
        stops = StopStrings(["</stop>"])
        assert [stops.feed(piece) for piece in ("a", "</", "think>", "b")] == ["a", "", "</think>", "b"]


class TestTheFirstOfARepeatedStopWins:  # vllm 46113
    def test_it(self) -> None:
        assert StopStrings(["X"]).feed("aXbXc") == "a"


class TestAnEndTokenIsNotText:  # vllm 14623
    def test_it(self, text_model: TextModel) -> None:
        choice = Choice(text_model, TextOptions())
        ids = text_model.encode_completion("the sea")
        steps = [Progress(0, i, None, 0) for i in ids] + [Progress(0, ids[0], Finish.STOP, 0)]
        shown = [content_of(choice.feed(step)) for step in steps]
        assert "".join(shown) == "the sea"


class TestNoReplacementCharacterIsShown:  # exo 1691, triton-inference-server 8039, mlx-vlm 1778
    @pytest.mark.parametrize("text", ["🙂 €", "日本語 text", "a🇪🇺b", " é "])
    def test_it(self, text_model: TextModel, text: str) -> None:
        ids = text_model.encode_completion(text)
        for cut in range(1, len(ids) + 1):
            choice = Choice(text_model, TextOptions())
            shown = "".join(content_of(choice.feed(Progress(0, i, None, 0))) for i in ids[:cut])
            assert text.startswith(shown)
            assert "\ufffd" not in shown


class TestLogProbabilitiesAreNotShownBeforeTheirText:  # vllm 51641
    def test_it(self, model: Decoder, text_model: TextModel) -> None:
        engine = tiny_engine(model)
        engine.add(0, PROMPTS[0], greedy(12, logprobs=0))
        choice = Choice(text_model, TextOptions(stops=("zzzz" * 9,), logprobs=True))
        shown = 0
        for item in finished(engine)[0]:
            shown += len(content_of(choice.feed(item)))
            if choice.finish_reason is None:
                assert all(entry.offset < shown for entry in choice.take_entries())


class TestTruncatedDrawsAreReproducible:  # vllm 16945
    def test_it(self, model: Decoder) -> None:
        params = SamplingParams(max_tokens=12, top_k=20, min_p=0.05, seed=7, ignore_eos=True)
        first = generate(tiny_engine(model), [PROMPTS[0]], params)[0]
        assert generate(tiny_engine(model, max_num_batched_tokens=16), [*PROMPTS[1:], PROMPTS[0]], params)[3] == first


class TestPenaltiesOfOneDoNotTouchItsNeighbours:  # vllm 27878, 26467, 27910
    def test_it(self, model: Decoder, alone: list[list[int]]) -> None:
        engine = tiny_engine(model)
        for id, prompt in enumerate(PROMPTS):
            engine.add(id, prompt, greedy(12, repetition_penalty=1.9) if id % 2 else greedy(12))
        found = finished(engine)
        assert [tokens(found[id]) for id in (0, 2)] == [alone[0], alone[2]]
        assert tokens(found[1]) != alone[1]


class TestFrequencyPenaltiesDoNotLookAtThePrompt:  # vllm 1424, vllm-metal 69
    def test_it(self, model: Decoder, alone: list[list[int]]) -> None:
        params = greedy(1, presence_penalty=2.0, frequency_penalty=2.0)
        prompts = [[*PROMPTS[0], alone[0][0]], PROMPTS[0]]
        assert generate(tiny_engine(model), prompts, params) == generate(tiny_engine(model), prompts, greedy(1))


class TestPromptLogprobsAreNotThoseOfAnotherRequest:  # vllm 3251, 8268, 13105, 42245
    def test_it(self, model: Decoder) -> None:
        reference = []
        for prompt in PROMPTS:
            engine = tiny_engine(model)
            engine.add(0, prompt, greedy(1, prompt_logprobs=1))
            reference.append(finished(engine)[0][0].prompt)
        engine = tiny_engine(model, block_size=4, max_num_batched_tokens=16)
        for _ in range(2):  # the second time everything is in the prefix cache
            for id, prompt in enumerate(PROMPTS):
                engine.add(id, prompt, greedy(1, prompt_logprobs=1))
            found = finished(engine)
            for id, expected in enumerate(reference):
                told = found[id][0].prompt
                assert told is not None and expected is not None
                assert [p.logprob for p in told] == pytest.approx([p.logprob for p in expected], abs=1e-3)


class TestAPromptThatFillsTheContextIsRefusedAndNotAnsweredWithNothing:  # vllm 42474, 3851, mini-sglang
    def test_it(self, model: Decoder) -> None:
        engine = tiny_engine(model, **SMALL)
        with pytest.raises(ContextLengthExceeded):
            engine.add(0, [1] * 64, greedy(1))
        engine.add(0, [1] * 63, greedy(10))
        (only,) = finished(engine)[0]
        assert only.finish is Finish.LENGTH


class TestMoreChoicesThanPlacesDoNotHang:  # vllm 6646, 16863, 21519
    @pytest.mark.parametrize("priority", [0, 1])
    def test_it(self, model: Decoder, priority: int) -> None:
        engine = tiny_engine(model, max_num_seqs=2, block_size=4)
        for id in range(9):
            params = SamplingParams(max_tokens=5, seed=id, ignore_eos=True)
            engine.add(id, PROMPTS[1], params, leader=0 if id else None, priority=priority)
        found = finished(engine)
        expected = [
            generate(tiny_engine(model), [PROMPTS[1]], SamplingParams(max_tokens=5, seed=id, ignore_eos=True))[0]
            for id in range(9)
        ]
        assert [tokens(found[id]) for id in range(9)] == expected


class TestAnIdThatIsInUseDoesNotBreakTheEngine:  # vllm 10583
    def test_it(self, model: Decoder, alone: list[list[int]]) -> None:
        engine = tiny_engine(model)
        engine.add(0, PROMPTS[0], greedy(12))
        with pytest.raises(InvalidRequest):
            engine.add(0, PROMPTS[1], greedy(12))
        assert tokens(finished(engine)[0]) == alone[0]


class TestAFreedBlockIsNotFoundUnderItsOldName:  # sglang 140
    def test_it(self) -> None:
        blocks = BlockManager(2, 4)
        first = Sequence(0, [1] * 8, greedy(1), arrival=0)
        assert blocks.grow(first, 8)
        first.num_computed = 8
        blocks.publish(first)
        blocks.release(first)
        other = Sequence(1, [2] * 8, greedy(1), arrival=1)
        assert blocks.grow(other, 8)
        assert sorted(blocks.dirty) == [0, 1]
        again = Sequence(2, [1] * 8, greedy(1), arrival=2)
        assert blocks.adopt_prefix(again) == 0
