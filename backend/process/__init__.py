"""The engine's process and the HTTP process's side of it: messages, supervision, grammar checks, metrics.

`backend.chat`, `backend.answer` and `backend.server` may import it.
"""
