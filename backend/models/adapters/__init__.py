"""Low-rank adapters (LoRA) of a model: readers, slots in device memory and adapted linear layers.

`backend.models.decoders`, `backend.engine` and `backend.planner` may import it.
"""
