import json
from pathlib import Path
from typing import Any

import pytest

from backend.errors import CorruptCheckpoint, UnsupportedModel
from backend.models.checkpoints import pooling
from backend.models.checkpoints.checkpoint import Checkpoint
from backend.models.checkpoints.pooling import POOLED, Embedding, Pooling
from tests.backend.embedding_models import NORMALIZE, POOLING, TRANSFORMER, say_how, write_decoder, write_encoder


def say(folder: Path, steps: Any, config: dict[str, Any] | None = None) -> None:
    (folder / "modules.json").write_text(json.dumps(steps))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(config or {"pooling_mode_mean_tokens": True}))


@pytest.mark.parametrize("mode", POOLED)
@pytest.mark.parametrize("normalised", [True, False])
def test_how_vectors_are_made_is_read_from_the_files(mode: Pooling, normalised: bool, tmp_path: Path) -> None:
    say_how(tmp_path, mode, normalised=normalised, max_tokens=99)
    assert pooling.read(tmp_path) == Embedding(mode, normalised, 99)


def test_the_newer_spelling_of_a_pooling_is_read(tmp_path: Path) -> None:
    say(tmp_path, [TRANSFORMER, POOLING], {"pooling_mode": "cls", "embedding_dimension": 48})
    assert pooling.read(tmp_path) == Embedding(Pooling.FIRST, False, None)


def test_a_folder_that_says_nothing_is_of_a_model_that_writes_text(tmp_path: Path) -> None:
    assert pooling.read(tmp_path) is None


@pytest.mark.parametrize(
    ("steps", "config", "message"),
    [
        ([TRANSFORMER], None, "embeddings by Transformer; computed are"),
        ([], None, "embeddings by nothing"),
        ([TRANSFORMER, POOLING, {**NORMALIZE, "type": "sentence_transformers.models.Dense"}], None, "Dense"),
        ([TRANSFORMER, NORMALIZE, POOLING], None, "Normalize, Pooling"),
        (["Transformer", "Pooling"], None, "computed are"),
        ([TRANSFORMER, POOLING], {"pooling_mode_max_tokens": True}, "pooling by max"),
        ([TRANSFORMER, POOLING], {"pooling_mode_mean_tokens": False}, "pooling by nothing"),
        ([TRANSFORMER, POOLING], {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}, "mean and cls"),
        ([TRANSFORMER, POOLING], {"pooling_mode": "max"}, "pooling by max"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(
    steps: Any, config: dict[str, Any] | None, message: str, tmp_path: Path
) -> None:
    say(tmp_path, steps, config)
    with pytest.raises(UnsupportedModel, match=message):
        pooling.read(tmp_path)


@pytest.mark.parametrize("path", ["../1_Pooling", "/etc", "", "a/b"])
def test_a_step_outside_the_folder_is_not_read(path: str, tmp_path: Path) -> None:
    say(tmp_path, [TRANSFORMER, {**POOLING, "path": path}])
    with pytest.raises(CorruptCheckpoint, match="outside its own"):
        pooling.read(tmp_path)


@pytest.mark.parametrize("most", [0, -1, "512", 1.5])
def test_a_length_that_is_none_is_a_corrupt_checkpoint(most: Any, tmp_path: Path) -> None:
    say(tmp_path, [TRANSFORMER, POOLING])
    (tmp_path / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": most}))
    with pytest.raises(CorruptCheckpoint, match="max_seq_length"):
        pooling.read(tmp_path)


def test_lower_case_outside_the_tokenizer_is_refused(tmp_path: Path) -> None:
    say(tmp_path, [TRANSFORMER, POOLING])
    (tmp_path / "sentence_bert_config.json").write_text(json.dumps({"do_lower_case": True}))
    with pytest.raises(UnsupportedModel, match="lower-case"):
        pooling.read(tmp_path)


def test_a_list_where_an_object_belongs_is_a_corrupt_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "modules.json").write_text("{}")
    with pytest.raises(CorruptCheckpoint, match="does not hold a list"):
        pooling.read(tmp_path)


def test_a_decoder_that_looks_ahead_is_refused(tmp_path: Path) -> None:
    write_decoder(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "is_causal": False}))
    with pytest.raises(UnsupportedModel, match="attention to later tokens"):
        _ = Checkpoint(tmp_path).config


def test_the_frame_of_a_text_is_the_tokenizers_own(tmp_path: Path) -> None:
    write_encoder(tmp_path)
    ids = Checkpoint(tmp_path).embedding_text.encode("ab")
    assert (ids[0], ids[-1], len(ids)) == (2, 3, 4)
