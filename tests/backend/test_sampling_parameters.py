"""What a sampling parameter's declaration says is what the wire, a checkpoint and the engine do."""

import json
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError

from backend.engine.core.logit_effects import EFFECTS, LogitBias
from backend.engine.core.sampling import SamplingParams
from backend.errors import CorruptCheckpoint
from backend.models.checkpoints.generation_config import SamplingDefaults, sampling_defaults
from backend.sampling_parameters import PARAMETERS, SamplingParameter, values
from backend.wire import CompletionRequest

ALL = pytest.mark.parametrize("parameter", PARAMETERS, ids=lambda parameter: parameter.name)


def request(**fields: float) -> CompletionRequest:
    return CompletionRequest.model_validate({"model": "m", "prompt": "p", **fields})


def beyond(parameter: SamplingParameter) -> list[float]:
    """A value below the range and, where there is one, above it."""
    low = parameter.above if parameter.above is not None else parameter.at_least
    assert low is not None
    below = low if parameter.above is not None else low - 1
    return [below] if parameter.at_most is None else [below, parameter.at_most + 1]


@ALL
def test_the_engine_has_a_field_of_that_name_with_the_neutral_value(parameter: SamplingParameter) -> None:
    assert getattr(SamplingParams(max_tokens=1), parameter.name) == parameter.neutral


@ALL
def test_the_wire_refuses_what_is_beyond_the_range_and_takes_its_ends(parameter: SamplingParameter) -> None:
    for value in beyond(parameter):
        with pytest.raises(ValidationError):
            request(**{parameter.name: value})
        assert not parameter.allows(value)
    for value in (parameter.at_least, parameter.at_most):
        if value is not None:
            assert getattr(request(**{parameter.name: value}), parameter.name) == value
            assert parameter.allows(value)


@ALL
def test_a_checkpoint_recommends_within_the_range_or_is_refused(parameter: SamplingParameter, tmp_path: Path) -> None:
    def recommends(value: float) -> SamplingDefaults:
        (tmp_path / "generation_config.json").write_text(json.dumps({parameter.name: value}))
        return sampling_defaults(tmp_path)

    assert hasattr(SamplingDefaults(), parameter.name) is parameter.recommended
    if not parameter.recommended:
        assert recommends(1e9) == SamplingDefaults()
        return
    assert getattr(recommends(1), parameter.name) == 1
    with pytest.raises(CorruptCheckpoint, match=f"{parameter.name} is .* has to be a number {parameter.range}"):
        recommends(beyond(parameter)[0])


def test_a_request_goes_before_a_recommendation_and_that_before_the_neutral_value() -> None:
    found = values(request(temperature=0.0, top_k=-1), SamplingDefaults(temperature=0.6, top_k=20, top_p=0.9))
    assert (found["temperature"], found["top_k"], found["top_p"], found["min_p"]) == (0.0, 0, 0.9, 0.0)
    assert set(found) == {parameter.name for parameter in PARAMETERS}


def test_each_effect_names_a_field_of_the_engine_that_is_false_unless_asked_for() -> None:
    for effect in EFFECTS:
        assert not getattr(SamplingParams(max_tokens=1), effect.parameter)


def test_a_bias_is_added_to_its_row_and_token_alone_and_twice_if_named_twice() -> None:
    logits = torch.zeros(3, 5)
    asked = [SamplingParams(max_tokens=1, logit_bias=bias) for bias in (((1, 2.0), (1, 0.5)), ((4, -1.0),))]
    LogitBias().apply(logits, [0, 2], asked)
    assert logits.tolist() == [[0, 2.5, 0, 0, 0], [0] * 5, [0, 0, 0, 0, -1.0]]
