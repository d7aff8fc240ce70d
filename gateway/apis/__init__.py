"""Other APIs than OpenAI's chats: each a translation around the chat pipeline (`gateway.api_format`).

`gateway.server` and `gateway.batches` may import it.
"""
