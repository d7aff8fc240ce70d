from pathlib import Path

import pytest

from backend.answer.answers import content_of
from backend.chat.choice import Choice, TextOptions
from backend.engine.core.progress import Finish, Progress
from backend.models.checkpoints.checkpoint import Checkpoint
from backend.models.checkpoints.tokenizer import TextModel
from backend.tools.parts import Part


@pytest.fixture(scope="module")
def text_model(folder: Path) -> TextModel:
    return Checkpoint(folder).text


def shown(parts: list[Part]) -> str:
    return content_of(parts)


def tokens(*ids: int, finish: Finish | None = None) -> list[Progress]:
    return [Progress(0, id, None, 0) for id in ids[:-1]] + [Progress(0, ids[-1], finish, 0)]


def test_a_character_of_several_tokens_is_shown_once_it_is_whole(text_model: TextModel) -> None:
    choice = Choice(text_model, TextOptions())
    ids = text_model.encode_completion("🙂")
    assert len(ids) == 4
    texts = [shown(choice.feed(p)) for p in tokens(*ids, finish=Finish.LENGTH)]
    assert texts == ["", "", "", "🙂"]
    assert (choice.tokens, choice.finish_reason) == (4, "length")


def test_a_character_that_is_never_finished_is_not_shown_as_a_broken_one(text_model: TextModel) -> None:
    choice = Choice(text_model, TextOptions())
    ids = text_model.encode_completion("a€")[:-1]
    assert "".join(shown(choice.feed(p)) for p in tokens(*ids, finish=Finish.LENGTH)) == "a"


def test_an_end_token_counts_but_is_not_text(text_model: TextModel) -> None:
    choice = Choice(text_model, TextOptions())
    ids = text_model.encode_completion("the")
    assert "".join(shown(choice.feed(p)) for p in tokens(*ids, ids[0], finish=Finish.STOP)) == "the"
    assert (choice.tokens, choice.finish_reason) == (len(ids) + 1, "stop")


def test_text_held_back_for_a_stop_string_is_shown_when_the_answer_ends(text_model: TextModel) -> None:
    choice = Choice(text_model, TextOptions(("sea and",)))
    ids = text_model.encode_completion("the sea")
    assert "".join(shown(choice.feed(p)) for p in tokens(*ids, finish=Finish.LENGTH)) == "the sea"
    assert choice.finish_reason == "length"


def test_a_stop_string_ends_the_choice_also_when_it_begins_inside_a_token(text_model: TextModel) -> None:
    choice = Choice(text_model, TextOptions(("e s",)))
    text = ""
    for p in tokens(*text_model.encode_completion("the sea")):
        text += shown(choice.feed(p))
        if choice.finish_reason:
            break
    assert (text, choice.finish_reason) == ("th", "stop")


def test_a_failed_sequence_says_so(text_model: TextModel) -> None:
    choice = Choice(text_model, TextOptions())
    assert choice.feed(Progress(0, None, Finish.ERROR, 0)) == []
    assert choice.finish_reason == "error"
