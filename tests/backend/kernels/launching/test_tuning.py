import json
import re
from pathlib import Path

import pytest

from backend.kernels.launching import tuning
from backend.kernels.launching.tuning import Choice, Choices, OutOfResources
from backend.kernels.linear.int4_reference import GROUP

SMALL, LARGE = Choice.of(4, 2, TILE=32), Choice.of(8, 3, TILE=128)


@pytest.fixture
def defaults_afterwards():
    yield
    tuning.use(Choices("defaults"))


def test_without_tuning_the_default_is_taken():
    assert tuning.choice("kernel", "shape", SMALL) is SMALL


def test_the_fastest_candidate_that_runs_is_kept_and_used(defaults_afterwards):
    choices = Choices("card")
    seconds = {SMALL: 2.0, LARGE: None}
    assert choices.tune("kernel[shape]", [LARGE, SMALL], seconds.get) == SMALL
    tuning.use(choices)
    assert tuning.choice("kernel", "shape", LARGE) == SMALL
    assert tuning.choice("kernel", "another shape", LARGE) == LARGE
    assert tuning.choice("another kernel", "shape", LARGE) == LARGE


class Card:
    """With shared memory for so many stages of so large a tile."""

    def __init__(self, room):
        self.room, self.launched = room, []

    def launch(self, choice):
        self.launched.append(choice)
        needed = dict(choice.blocks)["TILE"] * choice.stages
        if needed > self.room:
            raise OutOfResources(needed, self.room, "shared memory")
        return choice


LOOKUP = tuning.Lookup("kernel", "shape", LARGE, lambda: [LARGE, SMALL])


def test_a_launch_that_fits_is_made_once_with_the_choice_in_use(defaults_afterwards):
    card = Card(1000)
    assert tuning.launched(LOOKUP, card.launch) == LARGE
    tuning.use(Choices("card", known={"kernel[shape]": SMALL}))
    assert tuning.launched(LOOKUP, card.launch) == SMALL
    assert card.launched == [LARGE, SMALL]


@pytest.mark.parametrize(
    ("room", "fits"),
    [(3 * 128, LARGE), (3 * 128 - 1, Choice.of(8, 2, TILE=128)), (128, Choice.of(8, 1, TILE=128)), (127, SMALL),
     (63, Choice.of(4, 1, TILE=32)), (32, Choice.of(4, 1, TILE=32))],
)  # fmt: skip
def test_where_a_card_has_too_little_fewer_stages_or_smaller_blocks_are_launched_and_remembered(
    room, fits, defaults_afterwards
):
    tuning.use(Choices("a small card"))
    card = Card(room)
    assert tuning.launched(LOOKUP, card.launch) == fits
    card.launched.clear()
    assert tuning.launched(LOOKUP, card.launch) == fits
    assert card.launched == [fits]


def test_where_nothing_fits_or_nothing_else_was_asked_for_the_launch_fails(defaults_afterwards):
    tuning.use(Choices("a small card"))
    with pytest.raises(OutOfResources):
        tuning.launched(LOOKUP, Card(31).launch)
    tuning.use(Choices("a benchmark", strict=True))
    with pytest.raises(OutOfResources):
        tuning.launched(LOOKUP, Card(300).launch)


def test_what_is_being_searched_for_is_settled_before_the_launch(defaults_afterwards):
    choices = Choices("card")
    tuning.use(choices)

    class Search:
        def settle(self, lookup, launch):
            choices.known[lookup.key] = SMALL

    with tuning.searching(Search()):
        assert tuning.launched(LOOKUP, Card(1000).launch) == SMALL
    choices.known.clear()
    assert tuning.launched(LOOKUP, Card(1000).launch) == LARGE


def test_equally_fast_candidates_are_settled_by_their_order():
    assert Choices("card").tune("kernel[shape]", [LARGE, SMALL], lambda _: 1.0) == LARGE


def test_a_shape_that_no_candidate_can_run_is_an_error():
    with pytest.raises(ValueError, match="no candidate"):
        Choices("card").tune("kernel[shape]", [SMALL], lambda _: None)


def test_choices_survive_in_the_section_of_their_card_and_version(tmp_path):
    path = tmp_path / "kernels" / "choices.json"
    for card, choice in (("H100", SMALL), ("H200", LARGE)):
        choices = Choices.load(path, card, "3.6.0")
        choices.tune("kernel[shape]", [choice], lambda _: 1.0)
        choices.save()
    assert Choices.load(path, "H100", "3.6.0").known == {"kernel[shape]": SMALL}
    assert Choices.load(path, "H200", "3.6.0").known == {"kernel[shape]": LARGE}
    assert Choices.load(path, "H100", "3.7.0").known == {}
    later = Choices("H100 / triton 3.6.0", path, {"kernel[another shape]": LARGE})
    later.save()
    assert Choices.load(path, "H100", "3.6.0").known == {"kernel[shape]": SMALL, "kernel[another shape]": LARGE}
    assert [entry.name for entry in path.parent.iterdir()] == ["choices.json"]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"H100 / triton 3": {"k": {"warps": 4}}}', '{"a": 1}', "\x00"])
def test_a_broken_file_means_defaults_and_a_warning_not_a_failed_start(content, tmp_path, caplog):
    path = tmp_path / "choices.json"
    path.write_text(content)
    assert Choices.load(path, "H100", "3").known == {}
    assert "ignoring launch choices" in caplog.text


def test_a_choice_is_what_a_launch_takes():
    assert LARGE.arguments() == {"TILE": 128, "num_warps": 8, "num_stages": 3}
    assert Choice.of(**json.loads(json.dumps(LARGE.as_json()))) == LARGE


def test_choices_without_a_file_cannot_be_saved():
    with pytest.raises(ValueError, match="no file"):
        Choices("card").save()


def test_the_choices_that_come_with_the_package_fit_the_shapes_they_are_for():
    content = json.loads((Path(tuning.__file__).parents[1] / "choices.json").read_text())
    assert any("H100" in target for target in content)
    for section in content.values():
        for key, choice in section.items():
            kernel, shape = key.rstrip("]").split("[")
            if kernel.startswith("latent_"):  # whose tiles are of keys
                assert choice["TILE"] in (16, 32, 64) and re.match(r"r\d+\+\d+ m\d+ ", shape)
                continue
            width = int(re.search(r" k(\d+)\b", shape)[1])
            if kernel == "narrow_linear":
                assert width % (choice["SPLITS"] * choice["BLOCK_K"]) == 0
                assert choice["SPLITS"] == 1 or " parts " in shape
            elif kernel == "grouped_linear":
                assert width % choice["BLOCK_K"] == 0
                assert " e" in shape
            elif kernel == "grouped_mxfp4":  # whose columns are in chunks of 128 that may end behind the width
                assert " e" in shape and width % 32 == 0
                assert choice["BLOCK_N"] >= 16 * choice["warps"]
            else:
                depth = {
                    "int4_linear": choice.get("UNROLL", 0) * GROUP,
                    "fp8_block_linear": 128,
                    "int8_linear": choice.get("BLOCK_K", 0),
                }
                assert width % (choice["SPLITS"] * depth[kernel]) == 0
                assert choice["SPLITS"] == 1 or "gated" not in shape  # whose parts cannot be added
            Choice.of(**choice)
