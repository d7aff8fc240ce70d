"""KV blocks of a prompt on their way from the backend that computed it to the one that answers: what is read on one
side, written on the other, and compared before either.

`backend.engine.engine` may import it, and `backend.process` and `backend.apart` import `frame` and `statement`.
"""
