"""Tools that a model may call: what a request offers, how models write calls, how an answer is held to be one.

`backend.answer`, `backend.chat` and `backend.server` may import it.
"""
