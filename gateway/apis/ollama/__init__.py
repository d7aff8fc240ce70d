"""Ollama's API (``/api/chat``, ``/api/generate``, ``/api/embed``) as a translation to chats and embeddings.

`gateway.apis.endpoints` may import it.
"""
