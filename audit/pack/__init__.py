"""Evidence packs: one zip that proves itself, with its HTML report and its verifier.

`audit.cli` and `gateway` may import it.
"""
