"""The registry of weight formats: names, the table in the documentation, what they may import."""

import subprocess
import sys
from pathlib import Path

import pytest

from backend.errors import ConfigError, UnsupportedModel
from backend.planner.cards import CARDS
from backend.quantization import FORMATS, chosen, declared_by, of_name
from backend.quantization.__main__ import BEGIN, END, table
from backend.quantization.format import StoredWeights
from backend.quantization.none import NONE

ROOT = Path(__file__).parents[3]


def test_names_belong_to_one_format_each() -> None:
    names = [format.name for format in FORMATS]
    assert len(set(names)) == len(names)
    assert [of_name(name) for name in names] == list(FORMATS)


def test_an_unknown_name_or_method_is_refused_naming_those_there_are() -> None:
    with pytest.raises(ConfigError, match="'int3' is not one of none, fp8, fp8-block, int8, w4a16, awq, gptq"):
        of_name("int3")
    with pytest.raises(
        UnsupportedModel, match="quant_method 'hqq' is not one of awq, compressed-tensors, fp8, gptq, modelopt"
    ):
        declared_by({"quant_method": "hqq"})


def test_the_table_in_the_documentation_is_the_registrys() -> None:
    text = (ROOT / "docs" / "models.md").read_text()
    assert text[text.index(BEGIN) : text.index(END) + len(END)] == table()


def test_formats_are_read_without_torch() -> None:
    program = "import sys, backend.quantization, backend.planner.capacity_plan; print('torch' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "False\n"
    )


@pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.name)
def test_every_format_is_counted_on_every_card_that_multiplies_it(format: object) -> None:
    for card in CARDS.values():
        found = of_name(str(getattr(format, "name", "")))
        if card.multiplies(found):
            speed = card.speed(found)
            assert min(speed.one_row, speed.many_rows, speed.flops) > 0
        assert 0 < found.matrix_bytes(256, 256, 2) <= NONE.matrix_bytes(256, 256, 2)


def test_what_is_not_asked_for_is_left_to_the_checkpoint() -> None:
    awq, fp8 = of_name("awq"), of_name("fp8")
    assert chosen(None, None) is NONE
    assert chosen(None, StoredWeights(awq)) is awq
    assert chosen("none", StoredWeights(awq)) is NONE
    assert chosen(None, StoredWeights(fp8)) is fp8
    assert chosen("none", StoredWeights(fp8)) is NONE
    assert chosen("fp8", StoredWeights(fp8)) is fp8


@pytest.mark.parametrize(
    ("kept", "only", "module", "expected"),
    [
        ((), (), "model.layers.1.mlp.up_proj", False),
        (("mlp.up_proj",), (), "model.layers.1.mlp.up_proj", True),
        (("model.layers.1",), (), "model.layers.10.mlp.up_proj", False),
        (("up_proj",), (), "model.layers.1.mlp.gate_up_proj", False),
        ((), ("mlp.down_proj",), "model.layers.1.mlp.up_proj", True),
        ((), ("mlp.down_proj",), "model.layers.1.mlp.down_proj", False),
    ],
)
def test_modules_are_kept_by_whole_parts_of_their_names(
    kept: tuple[str, ...], only: tuple[str, ...], module: str, expected: bool
) -> None:
    assert StoredWeights(of_name("awq"), kept, only).keeps(module) is expected
