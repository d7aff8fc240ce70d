"""What the gateway writes to stderr: the form of its lines, and a line for each call.

`gateway.cli`, `gateway.demo` and `gateway.server` may import it.
"""
