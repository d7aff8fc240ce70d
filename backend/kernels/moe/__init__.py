"""A mixture of experts on a GPU: which experts a token takes, tokens in blocks by expert, products by blocks.

`backend.quantization` and `backend.models` may import it.
"""
