"""Random LoRA adapters as PEFT writes them, and the model that each makes of its base, with merged weights."""

import copy
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from backend.models.config import ModelConfig
from backend.models.decoders.decoder import Decoder

EVERY = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def write_adapter(
    folder: Path,
    model: ModelConfig,
    seed: int,
    *,
    rank: int = 4,
    alpha: float = 8.0,
    rslora: bool = False,
    targets: tuple[str, ...] = EVERY,
    strength: float = 0.3,
    layers: tuple[int, ...] | None = None,
    **config: Any,
) -> Path:
    """model: the whole one."""
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, Tensor] = {}
    for layer in range(model.num_layers) if layers is None else layers:
        for module, (matrix, begin, end) in model.modules.items():
            if module.rpartition(".")[2] in targets:
                prefix = f"base_model.model.model.layers.{layer}.{module}"
                width = model.matrices[matrix][1]
                tensors[f"{prefix}.lora_A.weight"] = torch.randn(rank, width, generator=generator) * width**-0.5
                tensors[f"{prefix}.lora_B.weight"] = torch.randn(end - begin, rank, generator=generator) * strength
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    declared = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": alpha, "use_rslora": rslora,
        "target_modules": list(targets), "bias": "none", "use_dora": False, "modules_to_save": None,
        "fan_in_fan_out": False, "init_lora_weights": True, "inference_mode": True, "lora_dropout": 0.05,
        "rank_pattern": {}, "alpha_pattern": {}, "peft_version": "0.18.0", "qalora_group_size": 16,
        "base_model_name_or_path": "tiny", "loftq_config": {}, "lora_bias": False, **config,
    }  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(declared))
    return folder


def merged(model: Decoder, folder: Path) -> Decoder:
    """A copy whose weights are base + scaling * B A, added up in float64."""
    config = json.loads((folder / "adapter_config.json").read_text())
    rank = config["r"]
    scaling = config["lora_alpha"] / (rank**0.5 if config["use_rslora"] else rank)
    tensors = load_file(folder / "adapter_model.safetensors")
    found = copy.deepcopy(model)
    places = found.places()
    with torch.no_grad():
        for name, a in tensors.items():
            if ".lora_A." not in name:
                continue
            b = tensors[name.replace(".lora_A.", ".lora_B.")]
            place = places[name.removeprefix("base_model.model.").replace(".lora_A.weight", ".weight")]
            place.copy_((place.double() + scaling * (b.double() @ a.double())).to(place.dtype))
    return found
