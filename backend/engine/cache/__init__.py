"""The paged KV cache in plain torch, its pages as bytes, windows to other backends, and sleep.

`backend.engine.cpu`, `backend.engine.gpu`, `backend.engine.embedding` and `backend.engine.engine` may import it;
`backend.process` and `backend.apart` import `window_handle`.
"""
