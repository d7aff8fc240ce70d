"""Blocks of a prompt between two engines that work ahead: on the kernels' twins anywhere, on a card by a stream of its
own where there is one."""

import pytest

from backend.engine.apart.frame import Further
from backend.engine.core.sampling import SamplingParams
from backend.models.decoders.decoder import Decoder
from tests.backend.engine.apart.moving import exported, fetched, finished, tokens_of
from tests.backend.engine.gpu.test_graph_runner import GRAPHS, SHAPES, ahead
from tests.backend.tiny import generate, greedy, tiny_engine, tiny_model

PROMPT = [(13 * i + 2) % 320 for i in range(150)]


@pytest.fixture(scope="module", params=["llama", "mistral"])
def model(request: pytest.FixtureRequest) -> Decoder:
    return tiny_model(**SHAPES[request.param])


@GRAPHS
@pytest.mark.parametrize(
    "params", [greedy(12), SamplingParams(max_tokens=12, temperature=1.0, seed=3, ignore_eos=True)]
)
def test_tokens_are_those_of_one_engine(model: Decoder, graphs: str, params: SamplingParams) -> None:
    source, engine, alone = (ahead(model, graphs=graphs) for _ in range(3))
    assert fetched(source, engine, PROMPT, params)
    assert tokens_of(finished(engine)) == generate(alone, [PROMPT], params)[0]
    for each in (source, engine):
        assert each.blocks.num_used == 0
        assert each.scrub() == 0


def test_chunks_are_sent_while_others_are_computed_and_other_prompts_run(model: Decoder) -> None:
    source, engine = ahead(model), ahead(model)
    source.add(1, PROMPT[:40], greedy(30))
    assert fetched(source, engine, PROMPT, greedy(8))
    finished(source)
    assert tokens_of(finished(engine)) == generate(tiny_engine(model), [PROMPT], greedy(8))[0]


def test_an_export_that_is_aborted_in_flight_leaves_nothing(model: Decoder) -> None:
    source = ahead(model, prefix_cache=False)
    source.add(1, PROMPT, greedy(1), exports=0)
    source.step()
    source.step()
    source.abort(1)
    finished(source)
    assert source.blocks.num_used == 0
    assert source.scrub() == 0
    assert exported(source, PROMPT)[1] is Further.NOTHING
