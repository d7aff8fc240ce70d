"""A checkpoint on disk, GGUF file or Hugging Face folder, behind one face. Does not import torch."""

from functools import cached_property
from pathlib import Path

from backend.errors import ModelNotFound, UnsupportedModel
from backend.models import gguf, safetensors, tokenizer
from backend.models.config import ModelConfig
from backend.models.demo import find_demo_model
from backend.models.tokenizer import TextModel

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
            raise UnsupportedModel(f"{path.name} is neither a .gguf file nor a folder with config.json")
        else:
            raise ModelNotFound(f"no model at {path}")

    @cached_property
    def config(self) -> ModelConfig:
        whole = gguf.model_config(self._file) if self._file else safetensors.model_config(self.path)
        return whole.within(self._context)

    @cached_property
    def text(self) -> TextModel:
        return tokenizer.from_gguf(self._file) if self._file else tokenizer.from_folder(self.path)

    @property
    def has_text(self) -> bool:
        """Whether it brings a tokenizer; a shape for random weights need not."""
        return self._file is not None or (self.path / "tokenizer.json").is_file()

    @property
    def gguf_file(self) -> gguf.GGUFFile | None:
        return self._file


def resolve(model: str) -> Path:
    """``demo`` is the demonstration model; anything else is a path. Raises ModelNotFound."""
    return find_demo_model() if model == DEMO_ALIAS else Path(model).expanduser().resolve()
