"""What evidence needs from the gateway: registers, safeguards, and kept calls asked once more.

`gateway.cli` may import it; `sources` gives it to `audit`.
"""
