"""Other APIs than OpenAI's chats: each a translation around the chat pipeline (`gateway.api_format`).

`gateway.server` may import it.
"""
