"""From a checkpoint to a `HeadDecoder` with its weights in place."""

from pathlib import Path

import torch
from torch import Tensor

from backend.errors import ConfigError, CorruptCheckpoint
from backend.models.checkpoints.checkpoint import Checkpoint
from backend.models.checkpoints.direct import stored_tensors
from backend.models.checkpoints.quantised import read
from backend.models.decoders.decoder import text_names
from backend.models.heads.head_config import EAGLE3, HeadConfig
from backend.models.heads.head_decoder import HeadDecoder
from backend.models.loader import DTYPES, SPREAD, load_folder, named_weights
from backend.models.sharding import EMBEDDING, HEAD
from backend.quantization.format import Quantization
from backend.quantization.none import NONE


def load_head(
    config: HeadConfig,
    folder: Path,
    base: Checkpoint,
    dtype: str,
    device: str = "cpu",
    *,
    quantization: Quantization = NONE,
) -> HeadDecoder:
    """Load a head from `folder`, that of `base` itself for multi-token prediction, and the tables that it lacks from
    `base`.

    Raises:
        ModelError: the checkpoint cannot be loaded.
        ConfigError: the model's tables are not those that the head needs.
    """
    head = HeadDecoder(config, DTYPES[dtype], device, quantization)
    if config.kind != EAGLE3 and base.gguf_file is not None:
        raise ConfigError("layers for multi-token prediction are not read from GGUF files; name a folder in --model")
    head.own_names([tensor.name for tensor in stored_tensors(folder)])
    load_folder(head, folder)
    head.settle_targets()
    missing = {name: table for name, table in head.tables.items() if name not in head.found}
    _fill_from_base(missing, config, base)
    return head.eval()


def dummy_head(
    config: HeadConfig, dtype: str, device: str = "cpu", *, quantization: Quantization = NONE
) -> HeadDecoder:
    """Random weights, for measuring; it guesses the first `draft_vocab` tokens."""
    head = HeadDecoder(config, DTYPES[dtype], device, quantization)
    for parameter in head.parameters():
        if not parameter.is_meta and parameter.is_floating_point():
            parameter.data.normal_(0, SPREAD) if parameter.dim() > 1 else parameter.data.fill_(1)
    return head.eval()


@torch.no_grad()
def _fill_from_base(missing: dict[str, Tensor], config: HeadConfig, base: Checkpoint) -> None:
    """Fill tables of the head with those of the model. Raises ConfigError for another shape, CorruptCheckpoint."""
    for name, table in missing.items():
        wanted = HEAD if name.endswith(("lm_head.weight", "shared_head.head.weight")) else EMBEDDING
        tied = wanted == HEAD and base.config.tie_word_embeddings
        found = _of_base(base, EMBEDDING if tied else wanted, table.device)
        if found.shape != table.shape:
            raise ConfigError(
                f"the head has no {name}, and the model's is {list(found.shape)} where the head needs "
                f"{list(table.shape)}; name the head of this model in --draft-model"
            )
        table.copy_(found)


def _of_base(base: Checkpoint, wanted: str, device: torch.device) -> Tensor:
    if base.gguf_file is not None:
        return next(tensor for name, tensor in named_weights(base) if name == wanted)
    stored = stored_tensors(base.path)
    names = text_names([tensor.name for tensor in stored])
    for name, tensor in zip(names, stored, strict=True):
        if name == wanted and tensor.dtype.is_floating_point and tensor.dtype.itemsize > 1:
            return read({wanted: tensor}, device)[wanted]
    raise CorruptCheckpoint(
        f"the head needs the model's {wanted}, which it does not have in a float type; name a head with tables of its "
        "own in --draft-model"
    )
