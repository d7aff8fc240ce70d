"""Loads a tenant's own key before a call with stored content is recorded.

One thread writes the record for all tenants and must not wait for a tenant's Vault or HSM. The call waits instead,
before anything of it is recorded or sent.
"""

import asyncio
from typing import Final

from audit.errors import AuditError
from audit.keys.owner_keys import KeyRing
from gateway.errors import AuditUnavailable
from gateway.request.answer.commitments import are_demanded
from gateway.request.stages import Routed

PLAIN_S: Final = 5.0
"""Seconds for which a tenant without a key of its own is remembered as such."""


class TenantKeys:
    def __init__(self, ring: KeyRing) -> None:
        self._ring = ring
        self._plain: dict[str, float] = {}

    async def ready(self, routed: Routed) -> None:
        """Load the tenant's own key if the call needs it. Raises AuditUnavailable if the key is unavailable; nothing is
        recorded or sent then."""
        external, tenant = self._ring.external, routed.request.principal.tenant
        stores = routed.redacted.content is not None or are_demanded(routed)
        if not stores or not external.names or external.is_ready(tenant):
            return
        now = asyncio.get_running_loop().time()
        if self._plain.get(tenant, now) > now:
            return
        try:
            is_external = await asyncio.to_thread(self._warmed, tenant)
        except AuditError as error:
            raise AuditUnavailable(
                "The key that this tenant keeps itself is unavailable, so the call is not processed; try again later, "
                "and check the key",
                retry_after_s=5,
            ) from error
        if not is_external:
            self._plain[tenant] = now + PLAIN_S

    def _warmed(self, tenant: str) -> bool:
        if self._ring.external_of(tenant) is None:
            return False
        self._ring.warm(tenant)
        return True
