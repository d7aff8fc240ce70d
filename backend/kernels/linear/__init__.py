"""Products of a layer, its norms and its gate, FP8 included.

`backend.kernels.fused` may import it.
"""
