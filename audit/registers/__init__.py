"""The registers of an evidence pack: RoPA, DORA, AI systems, policies, privacy sheets, control mapping.

`audit.pack`, `audit.privacy` and `audit.cli` may import it.
"""
