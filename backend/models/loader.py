"""From a checkpoint to a `Decoder` with its weights in place."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from backend.errors import ConfigError, CorruptCheckpoint
from backend.models.checkpoints import gguf
from backend.models.checkpoints.checkpoint import Checkpoint
from backend.models.checkpoints.direct import OnProgress, Stored, fill, placed, stored_tensors
from backend.models.checkpoints.quantised import Contents, read
from backend.models.config import ModelConfig
from backend.models.decoders.decoder import Decoder
from backend.models.decoders.encoder import Encoder
from backend.models.layers.matrices import Matrices
from backend.models.sharding import EMBEDDING, HEAD, share_of
from backend.models.tensors import Expected, require_finite
from backend.parallel.group import SINGLE, ParallelGroup
from backend.parallel.shard import Share
from backend.quantization import reader_of
from backend.quantization.format import Packed, Quantization, StoredWeights
from backend.quantization.none import NONE

BUFFERED = 1 << 30
SPREAD = 0.02  # standard deviation of random weights
Placed = tuple[Stored, Tensor]  # a tensor of a file, and the weight that it is read into
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load_model(
    checkpoint: Checkpoint,
    dtype: str,
    device: str = "cpu",
    on_progress: OnProgress | None = None,
    *,
    quantization: Quantization = NONE,
    group: ParallelGroup = SINGLE,
) -> Decoder:
    """Raises ConfigError for an unknown dtype and ModelError for whatever is wrong with the checkpoint.

    quantization: a format that keeps weights as the checkpoint stores them has them so; for any other they become
    `dtype`. group: of a rank, that reads its share and computes it; raises ConfigError for a model that cannot be
    divided so (`sharding.of_rank`).
    """
    config = share_of(checkpoint.config, group, quantization)
    model = Decoder(config, DTYPES[_known(dtype)], device, quantization, group)
    if checkpoint.gguf_file is None:
        load_folder(model, checkpoint.path, on_progress)
        if model.config.tie_word_embeddings and checkpoint.embedding is None and model.config.stage.last:
            _require_one_table(model, checkpoint.path)
    else:
        model.load(named_weights(checkpoint))
    return model.eval()


def _require_one_table(model: Decoder, folder: Path) -> None:
    """Raises CorruptCheckpoint if the head that a tied model's files repeat is another one: whose word counts?"""
    stored = stored_tensors(folder)
    for name, tensor in zip(model.own_names([tensor.name for tensor in stored]), stored, strict=True):
        if name != HEAD:
            continue
        share = model.expected().share(EMBEDDING)
        own = model.tokens_of(model.embedding)
        head = torch.empty(own.shape, dtype=tensor.dtype, device=own.device)
        fill(placed(tensor, head, share))
        if not torch.equal(head.to(own.dtype), own):
            raise CorruptCheckpoint(f"config.json says that head and embedding are one, and {HEAD} is another")


def load_encoder(
    checkpoint: Checkpoint, dtype: str, device: str = "cpu", on_progress: OnProgress | None = None
) -> Encoder:
    """Raises what `load_model` does."""
    model = Encoder(checkpoint.encoder_config, DTYPES[_known(dtype)], device)
    load_folder(model, checkpoint.path, on_progress)
    return model.eval()


def _known(dtype: str) -> str:
    if dtype not in DTYPES:
        raise ConfigError(f"dtype {dtype!r} is not one of {', '.join(DTYPES)}; set --dtype to one of them")
    return dtype


@torch.no_grad()
def load_folder(model: Decoder | Encoder, folder: Path, on_progress: OnProgress | None = None) -> None:
    """Fill the weights from safetensors: those of the model's dtype straight into their places, others by way of a
    buffer on the device; quantised matrices as their format has it (`backend.quantization`)."""
    stored = _stored_by_own_names(model, folder)
    weights = reader_of(model.config.stored_weights if isinstance(model, Decoder) else None)
    total, done = 0, 0

    def count(now: int, _: int) -> None:
        if on_progress:
            on_progress(done + now, total)

    expected = model.expected()
    contents = Contents.of(stored, weights.format)
    straight, others = _by_way(_placed(contents.plain, expected))
    matrices = _quantised(contents, model, expected, weights)
    expected.require_all()
    _require_dense(model, [tensor.name for tensor in contents.plain])
    total = _bytes(straight) + _bytes(others) + sum(matrix.size for matrix in matrices)
    fill(straight, count)
    done += _bytes(straight)
    for batch in _batches(others):
        _fill_converted(batch, count)
        done += _bytes(batch)
    for matrix in matrices:
        matrix.fill(weights)
        done += matrix.size
        count(0, total)
    if contents.cache_scales and isinstance(model, Decoder):
        config = model.config
        scales = contents.scales_of_cache(config.all_layers or config.num_layers)
        model.kv_scales = scales[config.first_layer :][: config.num_layers]
    _require_finite([*straight, *others], matrices)
    if on_progress:
        on_progress(total, total)


def _placed(tensors: list[Stored], expected: Expected) -> list[Placed]:
    """What of each is read, and where to. Raises CorruptCheckpoint as `Expected.place` does."""
    found: list[Placed] = []
    for tensor in tensors:
        place = expected.place(tensor.name, tensor.shape)
        if place is not None:
            found += placed(tensor, place, expected.share(tensor.name))
    return found


@dataclass(frozen=True, slots=True)
class _QuantisedMatrix:
    """parts: in the files. place: of the dense weight. packed: places of the parts, if it is kept as stored. shares:
    which part of each is read, where that is not all."""

    name: str
    parts: dict[str, Stored]
    place: Tensor
    device: torch.device
    packed: Packed | None
    shares: dict[str, Share | None]

    @property
    def size(self) -> int:
        """Bytes that are read."""
        return sum(
            piece.size
            for name, part in self.parts.items()
            if name not in self.shares or self.shares[name] is not None
            for piece in part.parts(self.shares.get(name))
        )

    def fill(self, weights: StoredWeights) -> None:
        found = read(self.parts, self.device, self.shares)
        if self.packed is None:
            self.place.copy_(weights.format.dense(found, weights))
        else:
            weights.format.fill(self.packed, found, weights, self.place.dtype)


def _quantised(
    contents: Contents, model: Decoder | Encoder, expected: Expected, weights: StoredWeights
) -> list[_QuantisedMatrix]:
    """Raises CorruptCheckpoint for a matrix that the model does not have, or whose parts do not fit together."""
    packed = model.packed_places() if isinstance(model, Decoder) else {}
    device = next(p.device for p in model.parameters() if not p.is_meta)
    found = []
    for name, parts in contents.matrices.items():
        place = expected.place(name, weights.format.shape_of(name, parts, weights))
        if place is not None:
            share = expected.share(name)
            shares = {} if share is None else weights.format.cut(share, parts)
            found.append(_QuantisedMatrix(name, parts, place, device, packed.get(name), shares))
    return found


def _bytes(items: list[Placed]) -> int:
    return sum(tensor.size for tensor, _ in items)


def _require_finite(plain: list[Placed], matrices: list[_QuantisedMatrix]) -> None:
    """Raises CorruptCheckpoint naming a weight that holds NaN or infinity; parts of packed ones are checked as read."""
    dense = [(matrix.name, matrix.place) for matrix in matrices if matrix.packed is None]
    require_finite([*((tensor.name, place) for tensor, place in plain), *dense])


def _require_dense(model: Decoder | Encoder, names: list[str]) -> None:
    """Raises CorruptCheckpoint if a weight in a float type is one that config.json says is quantised."""
    packed = model.packed_places() if isinstance(model, Decoder) else {}
    for name in names:
        if name in packed:
            raise CorruptCheckpoint(f"config.json says that {name} is quantised, and the file has it in a float type")


def _stored_by_own_names(model: Decoder | Encoder, folder: Path) -> list[Stored]:
    """The tensors of a folder that the model has a use for, under the model's names for them."""
    stored = stored_tensors(folder)
    names = model.own_names([tensor.name for tensor in stored])
    return [replace(tensor, name=name) for tensor, name in zip(stored, names, strict=True) if name is not None]


def _by_way(items: list[Placed]) -> tuple[list[Placed], list[Placed]]:
    """Tensors that are read straight into their places, and those that have to be converted first."""
    straight: list[Placed] = []
    converted: list[Placed] = []
    for tensor, place in items:
        same = tensor.dtype == place.dtype and place.is_contiguous()
        (straight if same else converted).append((tensor, place))
    return straight, converted


def _fill_converted(batch: list[Placed], count: OnProgress) -> None:
    """Read the tensors into buffers on the device, and convert them into their places."""
    buffers = [(s, torch.empty(s.shape, dtype=s.dtype, device=place.device)) for s, place in batch]
    fill(buffers, count)
    for (_, place), (_, buffer) in zip(batch, buffers, strict=True):
        place.copy_(buffer)


def _batches(items: list[Placed]) -> Iterator[list[Placed]]:
    """Batches of at most BUFFERED bytes each, or of one tensor."""
    batch: list[Placed] = []
    for item in items:
        if batch and sum(s.size for s, _ in batch) + item[0].size > BUFFERED:
            yield batch
            batch = []
        batch.append(item)
    if batch:
        yield batch


def dummy_model(
    config: ModelConfig,
    dtype: str,
    device: str = "cpu",
    *,
    quantization: Quantization = NONE,
    group: ParallelGroup = SINGLE,
) -> Decoder:
    """Random weights of a trained model's spread: as fast as real ones, and as wordless as noise. Of a rank: its share
    of a model that exists nowhere whole; what all ranks hold is the same on each."""
    config = share_of(config, group, quantization)
    model = Decoder(config, DTYPES[_known(dtype)], device, quantization, group)
    for parameter in model.parameters():
        if not parameter.is_meta:
            parameter.data.normal_(0, SPREAD) if parameter.dim() > 1 else parameter.data.fill_(1)
    for layer in model.layers:
        for packed in layer.packed.values() if isinstance(layer, Matrices) else ():
            packed.format.fill_randomly(packed, SPREAD)
    model.agree()
    return model.eval()


def named_weights(checkpoint: Checkpoint) -> Iterator[tuple[str, Tensor]]:
    """(Hugging Face name, tensor) of a whole GGUF file, q and k rows in half-rotated order."""
    assert checkpoint.gguf_file is not None  # noqa: S101
    for name, array in gguf.weights(checkpoint.gguf_file, checkpoint.config):
        yield name, torch.from_numpy(array)
