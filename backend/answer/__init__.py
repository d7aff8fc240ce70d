"""Answers in the shapes of OpenAI's endpoints, whole or streamed.

Only `backend.server` may import it.
"""
