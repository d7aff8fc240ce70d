"""What clients and administrators touch: HTTP APIs, the command line, keys, limits, the request pipeline.

No other package may import it.
"""
