"""How a server that is not our engine proves who it is, and what it is called by.

Our own backends carry an identity of the cell in their certificate (`regions.identity.tls`). Any other server that
speaks OpenAI's API is trusted by what its operator gave us beforehand: the private CA that signed its certificate, the
very certificate, or both. Public CAs vouch for names, not for whose machine it is: they count for managed services
alone, whose machines are somebody else's anyway (docs/adr/0120).
"""

import ssl
from hashlib import sha256
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from regions.identity.tls import PinnedContext

Watermarking = Literal["vllm", "sglang", "tensorrt-llm"]
"""Servers that mark answers, by what they take from a request: vLLM (0.32 and later, ``--watermark-config``) the word
``watermarking``, SGLang (``--enable-watermark``) the object ``watermark``; TensorRT-LLM (``watermark_config``, a
prototype) is not asked and marks whatever it samples."""


class Trust(BaseModel):
    """A certificate under `ca` (PEM) for `name` (by default the host of the URL), or exactly the one whose SHA-256 is
    `pin` (of its DER form, in hex), or both. `key_file`: the file with the bearer token to send; the token is not
    stored. `plain`: it refuses parameters that are not OpenAI's own, such as vLLM's ``cache_salt``. `priority`: it
    orders its queue by vLLM's parameter of that name, lower first (``--scheduling-policy priority``); others refuse
    that. `watermark`: it marks its answers, and how it is asked to.

    `public`: a certificate of any authority that this system trusts, for `name`. `changed_key` says what then happens
    where it is for another key than those seen before: it is recorded, or it is refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    ca: str | None = None
    name: str | None = Field(None, max_length=253)
    pin: str | None = Field(None, pattern=r"^[0-9a-f]{64}$")
    key_file: str | None = None
    plain: bool = False
    priority: bool = False
    watermark: Watermarking | None = None
    public: bool = False
    changed_key: Literal["record", "refuse"] = "record"

    @model_validator(mode="after")
    def _public_alone(self) -> Self:
        if self.public and (self.ca is not None or self.pin is not None):
            raise ValueError(
                "a managed service is known by the public authorities, not by a CA or a pin; leave ca and pin out"
            )
        return self

    @model_validator(mode="after")
    def _ca_is_one(self) -> Self:
        if self.ca is not None:
            try:
                ssl.create_default_context(cadata=self.ca)
            except (ssl.SSLError, ValueError):
                raise ValueError("ca holds no certificate in PEM; give the certificates in PEM") from None
        return self

    @model_validator(mode="after")
    def _takes_either(self) -> Self:
        if self.plain and self.priority:
            raise ValueError(
                "a plain server, which refuses what is not OpenAI's own, does not take priority; set one of the two"
            )
        return self

    @property
    def proves(self) -> bool:
        """Whether a server can prove itself by it at all."""
        return self.public or self.ca is not None or self.pin is not None


def watermarks(kind: str, trust: Trust | None) -> bool:
    """Whether a backend marks its answers where it is asked to: our engine, and servers of which their operator says
    so."""
    return kind == "domicile" or (trust is not None and trust.watermark is not None)


def trusted_context(trust: Trust) -> ssl.SSLContext:
    """A context whose handshakes succeed only with a server that `trust` describes; others raise
    ssl.SSLCertVerificationError, before a byte of a request leaves. Raises ValueError if it describes none."""
    if not trust.proves:
        raise ValueError("neither a CA nor a certificate is named; set one of them")
    context = PinnedContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2  # servers that are not ours may know no better
    if trust.public:
        context.load_default_certs()
    elif trust.ca is not None:
        context.load_verify_locations(cadata=trust.ca)
    else:  # the pin alone identifies it
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if trust.pin is not None:
        context.sslobject_class = _pinned_to(trust.pin)
    return context


def check_pin(certificate: bytes | None, pin: str) -> None:
    """Raise ssl.SSLCertVerificationError unless `certificate`, in DER, is the one with that SHA-256."""
    shown = sha256(certificate).hexdigest() if certificate else "none"
    if shown != pin:
        raise ssl.SSLCertVerificationError(
            f"the peer's certificate is {shown}, expected {pin}"
            "; check the server, then register its certificate again with --pin"
        )


def _pinned_to(pin: str) -> type[ssl.SSLObject]:
    class PinnedCertificate(ssl.SSLObject):
        def do_handshake(self) -> None:
            super().do_handshake()
            shown: Any = self.getpeercert(binary_form=True)
            check_pin(shown, pin)

    return PinnedCertificate
