"""A model checkpoint on disk, GGUF file or Hugging Face folder, by one interface. Does not import torch."""

from functools import cached_property
from pathlib import Path

from backend.errors import ModelNotFound, UnsupportedModel
from backend.models import bert
from backend.models.bert import EncoderConfig
from backend.models.checkpoints import gguf, pooling, safetensors, tensor_table, tokenizer
from backend.models.checkpoints.demo import find_demo_model
from backend.models.checkpoints.generation_config import SamplingDefaults, sampling_defaults
from backend.models.checkpoints.pooling import Embedding, EmbeddingText, PairText, Pooling
from backend.models.checkpoints.tokenizer import TextModel
from backend.models.config import ModelConfig

DEMO_ALIAS = "demo"


class Checkpoint:
    """Raises ModelNotFound or UnsupportedModel when the path is neither format; the parts raise when they are read.

    ``context``: the longest sequence, in tokens, that it is wanted for; None: the model's.
    """

    def __init__(self, path: Path, context: int | None = None) -> None:
        self.path = path
        self._context = context
        if path.is_dir():
            self._file = None
        elif path.suffix == ".gguf":
            self._file = gguf.GGUFFile(path)
        elif path.exists():
            raise UnsupportedModel(
                f"{path.name} is neither a .gguf file nor a folder with config.json; name one of the two"
            )
        else:
            raise ModelNotFound(f"no model at {path}; name a .gguf file or a folder with config.json")

    @cached_property
    def config(self) -> ModelConfig:
        if self._file:
            return gguf.model_config(self._file).within(self._context)
        if self.embedding is not None:
            return safetensors.body_config(self.path).within(self._text_length)
        return safetensors.model_config(self.path).within(self._context)

    @cached_property
    def embedding(self) -> Embedding | None:
        """How it makes vectors; None for a model that writes text."""
        return None if self._file else pooling.read(self.path)

    @cached_property
    def is_encoder(self) -> bool:
        """An embedding model of BERT's kind, which `encoder_config` describes and `config` does not."""
        if self.embedding is None:
            return False
        return self.scores_pairs or bert.is_encoder(safetensors.read_json(self.path / "config.json"))

    @property
    def scores_pairs(self) -> bool:
        """It says how well two texts go together, and makes no vectors."""
        return self.embedding is not None and self.embedding.pooling is Pooling.SCORE

    @cached_property
    def encoder_config(self) -> EncoderConfig:
        separator = self.pair_text.separator if self.scores_pairs else None
        config = bert.from_hugging_face(safetensors.read_json(self.path / "config.json"), separator)
        return config.within(self._text_length)

    @property
    def _text_length(self) -> int | None:
        said = self.embedding.max_tokens if self.embedding else None
        return min((length for length in (self._context, said) if length is not None), default=None)

    @cached_property
    def embedding_text(self) -> EmbeddingText:
        return EmbeddingText(tokenizer.read_tokenizer(self.path))

    @cached_property
    def pair_text(self) -> PairText:
        return PairText(tokenizer.read_tokenizer(self.path))

    @cached_property
    def text(self) -> TextModel:
        return tokenizer.from_gguf(self._file) if self._file else tokenizer.from_folder(self.path)

    @cached_property
    def sampling_defaults(self) -> SamplingDefaults:
        """What the checkpoint recommends; a GGUF file names none."""
        return SamplingDefaults() if self._file else sampling_defaults(self.path)

    @property
    def has_text(self) -> bool:
        """Whether it brings a tokenizer; a shape for random weights need not."""
        return self._file is not None or (self.path / "tokenizer.json").is_file()

    def require_files(self) -> None:
        """Check that weights and tokenizer are there, whole and readable, by headers and sizes; no weight is read.

        Raises ModelNotFound, CorruptCheckpoint or UnsupportedModel. A GGUF file's table was checked when it was opened.
        """
        if self._file is None:
            tensor_table.table_entries(self.path)
        if self.embedding is not None:
            self.embedding_text  # noqa: B018  # read, so that one that cannot be is refused
        else:
            self.text  # noqa: B018  # as above

    @property
    def gguf_file(self) -> gguf.GGUFFile | None:
        return self._file


def resolve(model: str) -> Path:
    """``demo`` is the demonstration model; anything else is a path. Raises ModelNotFound."""
    return find_demo_model() if model == DEMO_ALIAS else Path(model).expanduser().resolve()
