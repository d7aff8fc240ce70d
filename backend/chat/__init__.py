"""From a chat request to a prompt, and from tokens back to text, thoughts and calls.

`backend.answer` and `backend.server` may import it.
"""
