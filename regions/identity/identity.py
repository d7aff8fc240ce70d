"""Who a certificate speaks for: SPIFFE-style URIs, one grammar for writing and reading them.

    spiffe://domicile.<cell>/tenant/<tenant>/region/<region>/backend/<id>
    spiffe://domicile.<cell>/tenant/<tenant>/gateway

The gateway has one identity a tenant, so that acme's backend refuses a connection made for globex. Identities are
compared as whole strings, never by prefix. Sources: SPIFFE-ID §2, RFC 3986 §3; stricter than both: one spelling each.
"""

import re
from dataclasses import dataclass

from regions.errors import IdentityError

NAME = re.compile(r"[a-z][a-z0-9-]{1,30}")
"""Grammar of every name that an identity may contain: cell, tenant, project, region, backend."""

_URI = re.compile(
    rf"spiffe://domicile\.(?P<cell>{NAME.pattern})/tenant/(?P<tenant>{NAME.pattern})"
    rf"(?:/gateway|/region/(?P<region>{NAME.pattern})/backend/(?P<backend>{NAME.pattern}))"
)


def check_name(name: str, what: str) -> str:
    """`name`, or IdentityError saying what a `what` may look like."""
    if not NAME.fullmatch(name):
        raise IdentityError(
            f"{what} {name[:64]!r} is not a name; use 2 to 31 of a-z, 0-9 and '-', beginning with a letter, "
            "as 'eu-fr-par'"
        )
    return name


def trust_domain(cell: str) -> str:
    """The host part of every identity of `cell`."""
    return f"domicile.{check_name(cell, 'cell')}"


@dataclass(frozen=True, slots=True)
class GatewayIdentity:
    """The gateway as client, acting for one tenant."""

    cell: str
    tenant: str

    def __post_init__(self) -> None:
        check_name(self.cell, "cell")
        check_name(self.tenant, "tenant")

    @property
    def uri(self) -> str:
        return f"spiffe://{trust_domain(self.cell)}/tenant/{self.tenant}/gateway"


@dataclass(frozen=True, slots=True)
class BackendIdentity:
    """One replica: whose it is, where it runs, which it is."""

    cell: str
    tenant: str
    region: str
    backend: str

    def __post_init__(self) -> None:
        check_name(self.cell, "cell")
        check_name(self.tenant, "tenant")
        check_name(self.region, "region")
        check_name(self.backend, "backend")

    @property
    def uri(self) -> str:
        domain = trust_domain(self.cell)
        return f"spiffe://{domain}/tenant/{self.tenant}/region/{self.region}/backend/{self.backend}"


Identity = GatewayIdentity | BackendIdentity


def parse_identity(uri: str) -> Identity:
    """The identity `uri` names. Raises IdentityError for anything but the exact spelling `.uri` gives."""
    match = _URI.fullmatch(uri)
    if match is None:
        raise IdentityError(
            f"{uri[:200]!r} is not an identity of this system; give "
            "spiffe://domicile.CELL/tenant/TENANT/gateway, or .../region/REGION/backend/BACKEND"
        )
    cell, tenant, region, backend = match.group("cell", "tenant", "region", "backend")
    if backend is None:
        return GatewayIdentity(cell, tenant)
    return BackendIdentity(cell, tenant, region, backend)
