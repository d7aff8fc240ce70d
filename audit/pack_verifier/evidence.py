"""Checks that evidence of hardware in the records is for the nonce, TLS key and weights that its record names.

The standard library has no X.509 and no ECDSA, so signatures and certificates are not checked here:
``domicile evidence verify PACK`` does that.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from typing import Any

EVIDENCE_TYPES = ("backend.attested", "backend.attestation_refused")
EVIDENCE_FIELDS = ("backend_id", "technology", "measurement", "nonce", "key_sha256", "weights_sha256", "reason")
EVIDENCE_DOMAIN = b"domicile attestation v1\n"


def is_bound(event: dict[str, Any]) -> bool:
    """Whether the report holds the hash over what its record names."""
    named = [bytes.fromhex(event[name]) for name in ("nonce", "key_sha256", "weights_sha256")]
    bound = hashlib.sha512(EVIDENCE_DOMAIN + b"".join(named)).digest()
    try:
        report = base64.b64decode(event["report"], validate=True)
    except binascii.Error:
        return False
    technology = event["technology"]
    if technology == "sev-snp":
        return report[0x50:0x90] == bound
    if technology == "tdx":  # behind its header, and from version 5 on behind the kind of its body
        begin = 48 + 520 + (6 if report[:2] == b"\x05\x00" else 0)
        return report[begin : begin + 64] == bound
    if technology == "tpm":  # behind magic, kind and the name of the signer
        begin = 8 + int.from_bytes(report[6:8], "big")
        return report[begin : begin + 34] == b"\x00\x20" + bound[:32]
    return technology == "nvidia" and report[4:36] == bound[:32]
