"""OpenAI's Responses API (``/v1/responses``) as a translation to chats.

`gateway.apis.endpoints` may import it.
"""
