"""The OpenAI API as a client sees it: endpoints, request parsing, answers and server-sent events.

Every package of `gateway` above `gateway.limits` may import it.
"""
