"""The paged KV cache in plain torch, its pages as bytes, and sleep.

`backend.engine.cpu`, `backend.engine.gpu`, `backend.engine.embedding` and `backend.engine.engine` may import it.
"""
