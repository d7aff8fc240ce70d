"""Scores of pairs of texts against transformers' own cross-encoders, and the checkpoints that are refused."""

from pathlib import Path

import pytest

from backend.errors import CorruptCheckpoint, UnsupportedModel
from backend.models.checkpoints.checkpoint import Checkpoint
from tests.backend.embedding_models import TEXTS, scored, write_encoder, write_scorer
from tests.backend.engine.embedding.test_engine import engine_of, vectors

KINDS = ("Bert", "Roberta", "XLMRoberta")
PAIRS = [(one, other) for one in TEXTS[:3] for other in TEXTS]


@pytest.mark.parametrize("kind", KINDS)
def test_scores_of_pairs_equal_transformers(kind: str, tmp_path: Path) -> None:
    theirs = write_scorer(tmp_path, kind)
    text = Checkpoint(tmp_path).pair_text
    pairs = [pair for pair in PAIRS if len(text.encode(*pair)) <= 127]
    found = vectors(engine_of(tmp_path, max_num_batched_tokens=300), [text.encode(*pair) for pair in pairs])
    expected = [scored(theirs, tmp_path, *pair) for pair in pairs]
    assert len({round(score, 4) for score in expected}) > len(pairs) / 2 > 3, "they differ"
    for score, vector in zip(expected, found, strict=True):
        assert abs(float(vector[0]) - score) < 1e-4


def test_the_segment_of_the_second_text_counts(tmp_path: Path) -> None:
    write_scorer(tmp_path)
    checkpoint = Checkpoint(tmp_path)
    assert checkpoint.encoder_config.separator == 3
    first, second = (checkpoint.pair_text.encode(*pair) for pair in (("wind", "sea"), ("sea", "wind")))
    one, other = vectors(engine_of(tmp_path), [first, second])
    assert abs(float(one[0]) - float(other[0])) > 1e-3


def test_a_text_that_spells_the_separator_is_refused_where_segments_hang_on_it(tmp_path: Path) -> None:
    write_scorer(tmp_path / "bert")
    with pytest.raises(ValueError, match="separator"):
        Checkpoint(tmp_path / "bert").pair_text.encode("wind [SEP] sea", "hill")
    write_scorer(tmp_path / "roberta", "Roberta")
    assert Checkpoint(tmp_path / "roberta").pair_text.encode("wind [SEP] sea", "hill")


def test_a_long_second_text_is_cut_at_its_end(tmp_path: Path) -> None:
    write_scorer(tmp_path)
    text = Checkpoint(tmp_path).pair_text
    whole = text.encode("wind", "the sea")
    assert text.encode("wind", "the sea", len(whole)) == whole
    cut = text.encode("wind", "the sea", len(whole) - 2)
    assert cut == [*whole[:-3], whole[-1]] and len(cut) == len(whole) - 2
    with pytest.raises(ValueError, match="no room"):
        text.encode("wind", "sea", 5)


def test_a_classifier_of_several_labels_is_refused_by_their_number(tmp_path: Path) -> None:
    write_scorer(tmp_path, labels=3)
    with pytest.raises(UnsupportedModel, match="3 labels"):
        engine_of(tmp_path)


@pytest.mark.parametrize(
    ("more", "squashed"),
    [
        ({}, True),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}, False),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.activation.Sigmoid"}, True),
    ],
)
def test_a_score_is_squashed_unless_the_checkpoint_says_otherwise(
    more: dict[str, object], squashed: bool, tmp_path: Path
) -> None:
    write_scorer(tmp_path, **more)
    embedding = Checkpoint(tmp_path).embedding
    assert embedding is not None and embedding.squashed is squashed


def test_another_activation_is_refused(tmp_path: Path) -> None:
    write_scorer(tmp_path, sentence_transformers={"activation_fn": "torch.nn.Tanh"})
    with pytest.raises(UnsupportedModel, match="Tanh"):
        engine_of(tmp_path)


def test_a_head_that_is_missing_is_named(tmp_path: Path) -> None:
    write_encoder(tmp_path)
    (tmp_path / "modules.json").unlink()
    config = tmp_path / "config.json"
    named = config.read_text().replace('"BertModel"', '"BertForSequenceClassification"')
    config.write_text(named.replace('"vocab_size"', '"id2label": {"0": "x"}, "vocab_size"'))
    with pytest.raises(CorruptCheckpoint, match="missing, the first is classifier"):
        engine_of(tmp_path)
