"""Several processes that speak HTTP before one engine: the hub of the backend's main process, and what a process of the
server has in the place of the engine. Only `backend.server` may import it; it knows HTTP as ASGI alone.
"""
