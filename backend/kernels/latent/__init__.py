"""Multi-head latent attention (DeepSeek-AI 2024, DeepSeek-V2, section 2.1), with the products by the key and value
matrices absorbed into queries and results.

`products` multiplies each head by its own matrix, `rotary` writes the cache, and `attention` reads it once for all
heads, with the latents as keys and values. `reference` implements the same in torch.

`backend.engine` and `backend.models` may import it.
"""
