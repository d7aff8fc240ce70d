"""What evidence needs from the gateway: registers, safeguards, content of persons.

`gateway.cli` may import it; `sources` gives it to `audit`.
"""
