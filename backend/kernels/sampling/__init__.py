"""From logits to tokens on the device, and the inputs of the next step.

`backend.kernels.fused`, `backend.kernels.interface` and `backend.kernels.reference` may import it.
"""
