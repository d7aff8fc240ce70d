"""Random LoRA adapters of a shape, on disk as PEFT has them, for `bench.engine.gpu`."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from backend.models.config import ModelConfig

COUNT, RANK = 8, 16
ROW = "decode batch 64, 128/256"
ADAPTED, IDLE = f"{ROW}, {COUNT} adapters of rank {RANK}", f"{ROW}, {COUNT} places, no adapter used"
SETTINGS: dict[str, Any] = {"max_adapters": COUNT, "max_adapter_rank": RANK}


def write(folder: Path, model: "ModelConfig") -> list[str]:
    """Names of the adapters that lie in `folder` then: unlike by their scaling, for one file of weights serves all."""
    import torch
    from safetensors.torch import save_file

    tensors: dict[str, Any] = {}
    for layer in range(model.num_layers):
        for module, (matrix, begin, end) in model.modules.items():
            prefix = f"base_model.model.model.layers.{layer}.{module}"
            width = model.matrices[matrix][1]
            tensors[f"{prefix}.lora_A.weight"] = torch.randn(RANK, width).to(torch.bfloat16) * width**-0.5
            tensors[f"{prefix}.lora_B.weight"] = torch.randn(end - begin, RANK).to(torch.bfloat16) * 0.01
    names = [f"adapter-{number}" for number in range(COUNT)]
    for number, name in enumerate(names):
        place = folder / name
        place.mkdir()
        config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": RANK + number, "bias": "none"}
        (place / "adapter_config.json").write_text(json.dumps(config))
        if number:
            os.link(folder / names[0] / "adapter_model.safetensors", place / "adapter_model.safetensors")
        else:
            save_file(tensors, place / "adapter_model.safetensors")
    return names
