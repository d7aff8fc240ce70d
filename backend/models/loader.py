"""From a checkpoint to a `Decoder` with its weights in place."""

from collections.abc import Iterator

import torch
from torch import Tensor

from backend.errors import ConfigError
from backend.models import gguf, safetensors
from backend.models.checkpoint import Checkpoint
from backend.models.config import ModelConfig
from backend.models.decoder import Decoder

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load_model(checkpoint: Checkpoint, dtype: str, device: str = "cpu") -> Decoder:
    """Raises ConfigError for an unknown dtype and ModelError for whatever is wrong with the checkpoint."""
    if dtype not in DTYPES:
        raise ConfigError(f"dtype {dtype!r} is not one of {', '.join(DTYPES)}")
    model = Decoder(checkpoint.config, DTYPES[dtype], device)
    model.load(named_weights(checkpoint))
    return model.eval()


def dummy_model(config: ModelConfig, dtype: str, device: str = "cpu") -> Decoder:
    """Random weights of a trained model's spread: as fast as real ones, and as wordless as noise."""
    if dtype not in DTYPES:
        raise ConfigError(f"dtype {dtype!r} is not one of {', '.join(DTYPES)}")
    model = Decoder(config, DTYPES[dtype], device)
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.02) if parameter.dim() > 1 else parameter.data.fill_(1)
    return model.eval()


def named_weights(checkpoint: Checkpoint) -> Iterator[tuple[str, Tensor]]:
    """(Hugging Face name, tensor) of the whole checkpoint, q and k rows in half-rotated order."""
    file = checkpoint.gguf_file
    if file is None:
        yield from safetensors.weights(checkpoint.path)
    else:
        for name, array in gguf.weights(file, checkpoint.config):
            yield name, torch.from_numpy(array)
