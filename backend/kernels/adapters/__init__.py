"""What low-rank adapters (LoRA) add to a product: each row by its own adapter, or by none.

`backend.kernels` has the layers above; `backend.models.adapters` may import it.
"""
