"""Which models a caller may ask for, and what each can do, as lists of OpenAI's and Ollama's API.

`gateway.server` may import it.
"""
