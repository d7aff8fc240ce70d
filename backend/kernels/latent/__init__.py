"""Multi-head latent attention (DeepSeek-AI 2024, DeepSeek-V2, section 2.1), with the products by keys' and values'
matrices moved to queries and results.

`products` multiplies each head by its own matrix, `rotary` fills the cache, `attention` reads it: once for all heads,
latents as keys and as values. `reference` holds the same in torch.
"""
