"""Low-rank adapters of a model (LoRA): reading them, their memory, and products with what they add.

`backend.models.decoders`, `backend.engine` and `backend.planner` may import it.
"""
