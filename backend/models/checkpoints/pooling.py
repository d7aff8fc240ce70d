"""How a checkpoint makes one vector of a text: what sentence-transformers' files in its folder say. No torch here.

``modules.json`` names the steps, each with a folder of its own: the transformer, one pooling (Reimers & Gurevych 2019),
and perhaps a normalisation. A folder without it is a model that writes text.
"""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from backend.errors import CorruptCheckpoint, UnsupportedModel
from backend.models import bert
from backend.models.checkpoints.safetensors import read_json, read_list
from backend.models.checkpoints.tokenizer import encoded

STEPS, LIMITS = "modules.json", "sentence_bert_config.json"
SEQUENCE = ("Transformer", "Pooling", "Normalize")
MODE = "pooling_mode_"


class Pooling(StrEnum):
    """Whose hidden state, behind the last layer and its norm, is the text's: of its last token, of its first, or the
    mean of all. SCORE: a head makes one number of the first, which says how well a pair of texts goes together."""

    LAST = "lasttoken"
    FIRST = "cls"
    MEAN = "mean"
    SCORE = "score"


POOLED = (Pooling.LAST, Pooling.FIRST, Pooling.MEAN)


@dataclass(frozen=True, slots=True)
class Embedding:
    """normalised: vectors have length 1. max_tokens: of a text, if the checkpoint says less than its positions do.
    squashed: of a score, whether the logistic function of it is given."""

    pooling: Pooling
    normalised: bool
    max_tokens: int | None
    squashed: bool = False


@dataclass(frozen=True, slots=True)
class EmbeddingText:
    """The text side of such a model: no token of it ever becomes text again."""

    tokenizer: Tokenizer

    def encode(self, text: str) -> list[int]:
        """With the control tokens that the model was trained to see around a text. A spelling of one inside `text` is
        read as one; no other text can be reached by that."""
        return encoded(self.tokenizer, text, add_special_tokens=True)

    def truncated(self, text: str, most: int) -> list[int]:
        """The first `most` tokens, control tokens around the text included (as Hugging Face truncates)."""
        encoding = self.tokenizer.encode_batch([text], add_special_tokens=True)[0]
        ids: list[int] = encoding.ids
        surplus = len(ids) - most
        if surplus <= 0:
            return ids
        end = len(ids)
        while end and encoding.special_tokens_mask[end - 1]:
            end -= 1
        return [*ids[: max(0, end - surplus)], *ids[end:]][:most]


@dataclass(frozen=True, slots=True)
class PairText:
    """The text side of a model that scores pairs of texts."""

    tokenizer: Tokenizer

    @property
    def separator(self) -> int | None:
        """The token behind which the second text's segment begins; None where a model knows no segments."""
        pair = self.tokenizer.encode_batch([("a", "a")], add_special_tokens=True)[0]
        return pair.ids[pair.type_ids.index(1) - 1] if 1 in pair.type_ids else None

    def encode(self, one: str, other: str, most: int | None = None) -> list[int]:
        """The pair in the model's frame. `most`: tokens, beyond which the second text is cut at its end.

        Raises ValueError where a text spells the model's separator, so that segments could not be distinguished, and
        where the first text alone is too long.
        """
        pair = self.tokenizer.encode_batch([(one, other)], add_special_tokens=True)[0]
        ids: list[int] = pair.ids
        if pair.type_ids != bert.segments(ids, self.separator):
            raise ValueError("it spells the separator of this model; remove that")
        surplus = 0 if most is None else max(0, len(ids) - most)
        if not surplus:
            return ids
        second = [at for at, text in enumerate(pair.sequence_ids) if text == 1]
        if surplus >= len(second):
            raise ValueError("the first text leaves no room for the second; shorten it")
        return [*ids[: second[-surplus]], *ids[second[-1] + 1 :]]


def read(folder: Path) -> Embedding | None:
    """None where there is no ``modules.json``, and no head that scores pairs of texts.

    Raises UnsupportedModel for steps that are not computed, CorruptCheckpoint for what is no such file.
    """
    if not (folder / STEPS).is_file():
        return _scoring(folder / "config.json")
    steps = [step if isinstance(step, dict) else {} for step in read_list(folder / STEPS)]
    kinds = [str(step.get("type", "")).rpartition(".")[2] for step in steps]
    if tuple(kinds) not in (SEQUENCE, SEQUENCE[:2]):
        raise UnsupportedModel(f"embeddings by {', '.join(kinds) or 'nothing'}; computed are {', '.join(SEQUENCE)}")
    path = str(steps[1].get("path", ""))
    if Path(path).name != path or not path:
        raise CorruptCheckpoint(f"{STEPS} names a folder outside its own")
    limits = read_json(folder / LIMITS) if (folder / LIMITS).is_file() else {}
    if limits.get("do_lower_case"):
        raise UnsupportedModel(f"texts are not made lower-case, as {LIMITS} asks")
    most = limits.get("max_seq_length")
    if most is not None and (not isinstance(most, int) or most < 1):
        raise CorruptCheckpoint(f"{LIMITS}: max_seq_length is {most!r}")
    return Embedding(_pooling(read_json(folder / path / "config.json")), "Normalize" in kinds, most)


def _scoring(file: Path) -> Embedding | None:
    config = read_json(file) if file.is_file() else {}
    if not bert.scores_pairs(config):
        return None
    return Embedding(Pooling.SCORE, False, None, bert.squashes(config))


def _pooling(config: dict[str, Any]) -> Pooling:
    """Either spelling: one word, or a flag for each."""
    named = config.get("pooling_mode")
    chosen = (
        [named]
        if isinstance(named, str)
        else [
            name.removeprefix(MODE).removesuffix("_tokens").removesuffix("_token")
            for name, on in config.items()
            if name.startswith(MODE) and on is True
        ]
    )
    if len(chosen) != 1 or chosen[0] not in POOLED:
        raise UnsupportedModel(f"pooling by {' and '.join(map(str, chosen)) or 'nothing'}; computed is one of "
                               f"{', '.join(POOLED)}")  # fmt: skip
    return Pooling(chosen[0])
