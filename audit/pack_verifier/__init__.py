"""The verifier of evidence packs, in parts: `audit.pack.program` joins them into the one verify.py that a pack carries.

Each part is written in Python 3.9, of the standard library and of other parts alone. They share no line with the code
that writes the log and packs: what checks it must not repeat its mistakes. No module
of another package may import them.
"""
