"""A backend's answer on its way to the client: called, read, filtered, delivered.

`gateway.request` may import it.
"""
