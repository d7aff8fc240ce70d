"""A step on the CPU: the model runner and the sampler, the twins of `backend.engine.gpu`.

`backend.engine.gpu`, `backend.engine.embedding` and `backend.engine.engine` may import it.
"""
