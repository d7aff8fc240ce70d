"""Root keys of hardware vendors by fingerprint, and the verifier of each technology.

Other roots come from the configuration: those of Genoa and Turin, and of TPMs, whose makers and clouds have their own.
"""

from collections.abc import Callable, Mapping
from datetime import datetime

from cryptography.exceptions import UnsupportedAlgorithm

from policy.facts import Technology
from regions.evidence import nvidia, sev_snp, tdx, tpm
from regions.evidence.attestation import Claims, Evidence, Reference
from regions.evidence.errors import EvidenceRefused

ROOTS: Mapping[Technology, frozenset[str]] = {
    # ARK-Milan, https://kdsintf.amd.com/vcek/v1/Milan/cert_chain
    "sev-snp": frozenset({"sha256:9f056bee44377e29308cb5ffa895bdfb62d18881fa6bed8d6f075b0204089cb9"}),
    # Intel SGX Root CA, https://certificates.trustedservices.intel.com/Intel_SGX_Provisioning_Certification_RootCA.pem
    "tdx": frozenset({"sha256:a0af031289f5d5d4132f9186068a7fc13628633ba235777472e29b6b6c67a49e"}),
    "tpm": frozenset(),
    # NVIDIA Device Identity CA, nv-local-gpu-verifier 2.7.3
    "nvidia": frozenset({"sha256:a90c4eb5acfd3e3d03a25db6a26b84f720ad0503196c627c21ddd48dd85b06a4"}),
}
Verifier = Callable[[Evidence, bytes, datetime, Reference], Claims]
VERIFIERS: Mapping[Technology, Verifier] = {
    "sev-snp": sev_snp.verify,
    "tdx": tdx.verify,
    "tpm": tpm.verify,
    "nvidia": nvidia.verify,
}


def verified(evidence: Evidence, binding: bytes, at: datetime, reference: Reference) -> Claims:
    """Verify evidence and return its claims. Raises EvidenceRefused, which names the failed check."""
    try:
        return VERIFIERS[evidence.technology](evidence, binding, at, reference)
    except (ValueError, ArithmeticError, LookupError, UnsupportedAlgorithm) as error:  # of a library that reads it
        raise EvidenceRefused(
            f"the evidence of {evidence.technology} cannot be read ({type(error).__name__}); ask the backend again"
        ) from error
