"""GGUF files (ggml's model format, version 2 and 3): header, metadata and tensors over a memory map.

The header is parsed here, in a quarter of a second for a 50k vocabulary, because both processes of a backend need it
at start; the quantisation formats are the `gguf` package's. Source: ggml/docs/gguf.md.
"""

import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from backend.errors import CorruptCheckpoint, ModelNotFound, UnsupportedModel
from backend.models import families
from backend.models.config import ModelConfig
from backend.models.rope import Linear, PerFrequency, RopeScaling, Unscaled, Yarn, yarn_magnitude

MAGIC = b"GGUF"
DEFAULT_ALIGNMENT = 32
STRING, ARRAY = 8, 9
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}

LAYER_NAMES = {  # ours are Hugging Face's
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
TOP_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
ROPE_FACTORS = "rope_freqs.weight"
ROPE_SCALINGS = ("none", "linear", "yarn")


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """``shape`` is row-major (the file's order reversed), ``offset`` counts from the file's start."""

    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    offset: int
    size: int


class GGUFFile:
    """An open file: ``metadata`` and ``tensors`` by their GGUF names.

    Raises ModelNotFound, CorruptCheckpoint (wrong magic, truncated, tensors outside the file) or UnsupportedModel
    (version, tensor type).
    """

    def __init__(self, path: Path) -> None:
        if path.exists() and not path.is_file():  # to open a pipe would wait for a writer
            raise CorruptCheckpoint(f"{path.name} is not a regular file; put the weights themselves there")
        try:
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError:
            raise ModelNotFound(f"no model at {path}; name a .gguf file") from None
        except ValueError:
            raise CorruptCheckpoint(f"{path.name} is empty") from None
        self.path = path
        self._at = 0
        try:
            self._read_header()
        except struct.error:
            raise CorruptCheckpoint(f"{path.name} ends inside its header") from None

    def _read_header(self) -> None:
        if self._map[:4] != MAGIC:
            raise CorruptCheckpoint(f"{self.path.name} is not a GGUF file")
        self._at = 4
        (version,) = self._unpack("<I")
        if version not in (2, 3):
            raise UnsupportedModel(f"GGUF version {version}; 2 and 3 are read")
        tensor_count, kv_count = self._unpack("<QQ")
        self.metadata: dict[str, Any] = {}
        for _ in range(kv_count):
            key = self._string()
            self.metadata[key] = self._value(*self._unpack("<I"))
        directory = [self._tensor_entry() for _ in range(tensor_count)]
        alignment = int(self.metadata.get("general.alignment", DEFAULT_ALIGNMENT))
        if alignment <= 0:
            raise CorruptCheckpoint(f"alignment {alignment}")
        data = -(-self._at // alignment) * alignment
        self.tensors = {name: self._locate(name, shape, kind, data + at) for name, shape, kind, at in directory}

    def _unpack(self, layout: str) -> tuple[Any, ...]:
        values = struct.unpack_from(layout, self._map, self._at)
        self._at += struct.calcsize(layout)
        return values

    def _string(self) -> str:
        (length,) = self._unpack("<Q")
        raw = self._map[self._at : self._at + length]
        if len(raw) != length:
            raise CorruptCheckpoint(f"{self.path.name} ends inside a string")
        self._at += length
        return raw.decode("utf-8", errors="surrogateescape")

    def _value(self, kind: int) -> Any:
        if kind in SCALARS:
            return self._unpack("<" + SCALARS[kind])[0]
        if kind == STRING:
            return self._string()
        if kind != ARRAY:
            raise CorruptCheckpoint(f"metadata type {kind}")
        element, count = self._unpack("<IQ")
        if element in SCALARS:
            if count > len(self._map):
                raise CorruptCheckpoint(f"{self.path.name} ends inside an array")
            return list(self._unpack(f"<{count}{SCALARS[element]}"))
        return [self._value(element) for _ in range(count)]

    def _tensor_entry(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._string()
        (dims,) = self._unpack("<I")
        if dims > 4:
            raise CorruptCheckpoint(f"tensor {name} has {dims} dimensions")
        shape = self._unpack(f"<{dims}Q")
        kind, offset = self._unpack("<IQ")
        return name, tuple(reversed(shape)), kind, offset

    def _locate(self, name: str, shape: tuple[int, ...], kind: int, offset: int) -> TensorInfo:
        try:
            quantisation = GGMLQuantizationType(kind)
            block, block_bytes = GGML_QUANT_SIZES[quantisation]
        except (ValueError, KeyError):
            raise UnsupportedModel(f"tensor {name} has type {kind}, which the gguf package does not know") from None
        count = int(np.prod(shape, dtype=object))
        if not shape or shape[-1] % block:
            raise CorruptCheckpoint(f"tensor {name} of shape {shape} does not divide into blocks of {block}")
        size = count // block * block_bytes
        if offset + size > len(self._map):
            raise CorruptCheckpoint(f"tensor {name} reaches byte {offset + size} of a file of {len(self._map)}")
        return TensorInfo(shape, quantisation, offset, size)

    def read(self, name: str) -> np.ndarray[Any, np.dtype[np.float32]]:
        """One tensor, dequantised, float32, row-major."""
        info = self.tensors[name]
        raw = np.frombuffer(self._map, np.uint8, info.size, info.offset).reshape(*info.shape[:-1], -1)
        try:
            values = dequantize(raw, info.kind)
        except NotImplementedError as unknown:
            raise UnsupportedModel(f"tensor {name}: {unknown}") from None
        return np.array(values, dtype=np.float32).reshape(info.shape)


def model_config(file: GGUFFile) -> ModelConfig:
    """Read the hyper-parameters. Raises UnsupportedModel or CorruptCheckpoint (naming the missing key)."""
    meta = file.metadata
    family = families.of_gguf(meta.get("general.architecture")).gguf
    if meta.get(f"{family}.expert_count"):
        raise UnsupportedModel(
            "a mixture of experts is read from safetensors, not from GGUF"
            "; serve the safetensors checkpoint of this model"
        )

    def need(key: str) -> Any:
        if f"{family}.{key}" not in meta:
            raise CorruptCheckpoint(f"GGUF metadata has no {family}.{key}")
        return meta[f"{family}.{key}"]

    heads, hidden = need("attention.head_count"), need("embedding_length")
    window = meta.get(f"{family}.attention.sliding_window")
    return ModelConfig(
        vocab_size=meta.get(f"{family}.vocab_size") or len(meta.get("tokenizer.ggml.tokens", ())),
        hidden_size=hidden,
        intermediate_size=need("feed_forward_length"),
        num_layers=need("block_count"),
        num_heads=heads,
        num_kv_heads=meta.get(f"{family}.attention.head_count_kv", heads),
        head_dim=meta.get(f"{family}.attention.key_length", hidden // heads),
        max_position=need("context_length"),
        rms_norm_eps=need("attention.layer_norm_rms_epsilon"),
        rope_theta=meta.get(f"{family}.rope.freq_base", 10_000.0),
        tie_word_embeddings="output.weight" not in file.tensors,
        qkv_bias="blk.0.attn_q.bias" in file.tensors,
        qk_norm="blk.0.attn_q_norm.weight" in file.tensors,
        rope_scaling=_rope_scaling(file, f"{family}.rope.scaling"),
        windows=(window,) * need("block_count") if window else (),
    ).within(None)


def _rope_scaling(file: GGUFFile, at: str) -> RopeScaling:
    """Raises UnsupportedModel for a kind that is not computed exactly."""
    meta = file.metadata
    kind = meta.get(f"{at}.type", "none")
    if kind not in ROPE_SCALINGS:
        raise UnsupportedModel(f"RoPE scaling {kind!r} is not one of {', '.join(ROPE_SCALINGS)}")
    if ROPE_FACTORS in file.tensors:
        if kind != "none":
            raise UnsupportedModel(f"RoPE scaling {kind!r} with factors by frequency beside it is not computed")
        return PerFrequency(tuple(file.read(ROPE_FACTORS).tolist()))
    factor = meta.get(f"{at}.factor") or 1.0
    if kind == "linear":
        return Linear(factor)
    if kind == "yarn":
        original = meta.get(f"{at}.original_context_length")
        if not original:
            raise CorruptCheckpoint(f"GGUF metadata has no {at}.original_context_length")
        return Yarn(
            factor=factor,
            original_context=original,
            magnitude=yarn_magnitude(factor) * (meta.get(f"{at}.attn_factor") or 1.0),
            beta_fast=meta.get(f"{at}.yarn_beta_fast") or 32.0,
            beta_slow=meta.get(f"{at}.yarn_beta_slow") or 1.0,
        )
    return Unscaled()


def weights(file: GGUFFile, config: ModelConfig) -> Iterator[tuple[str, np.ndarray[Any, np.dtype[np.float32]]]]:
    """(Hugging Face name, float32 array) of every tensor.

    Converting to GGUF interleaves the two halves of each rotated head of Llama's q and k, because ggml rotates
    neighbouring pairs; it is undone here, as our RoPE rotates halves.
    """
    interleaved = families.of_gguf(file.metadata["general.architecture"]).interleaved
    heads = {"attn_q": config.num_heads, "attn_k": config.num_kv_heads}
    for name in file.tensors:
        if name == ROPE_FACTORS:
            continue
        stem, suffix = name.rsplit(".", 1)
        if stem in TOP_NAMES:
            yield f"{TOP_NAMES[stem]}.{suffix}", file.read(name)
            continue
        prefix, _, rest = stem.partition(".")
        layer, _, part = rest.partition(".")
        if prefix != "blk" or part not in LAYER_NAMES:
            raise UnsupportedModel(f"tensor {name} has no place in a Llama-shaped decoder")
        tensor = file.read(name)
        if interleaved and part in heads:
            tensor = _halves(tensor, heads[part])
        yield f"model.layers.{layer}.{LAYER_NAMES[part]}.{suffix}", tensor


def _halves(rows: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """Rows 0,1,2,3,… of each head, stored as pairs, back to first half then second half."""
    if rows.shape[0] % (2 * heads):
        raise CorruptCheckpoint(f"{rows.shape[0]} rows do not divide into {heads} heads")
    return rows.reshape(heads, -1, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)
