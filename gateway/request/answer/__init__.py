"""A backend's answer: called, read, filtered and delivered to the client.

`gateway.request` may import it.
"""
