"""Anthropic's Messages API (``/v1/messages``) as a translation to chats.

`gateway.apis.endpoints` may import it.
"""
