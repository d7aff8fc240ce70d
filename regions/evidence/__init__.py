"""Verification of evidence from backends: signatures of weights and attestation reports of hardware.

`gateway` may import it. No function does I/O: certificate chains, revocation lists and times are arguments.
"""
