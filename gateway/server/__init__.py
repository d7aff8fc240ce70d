"""The gateway as a process: assembly, sockets, health, and the work done by the clock.

`gateway.cli` and `gateway.demo` may import it.
"""
