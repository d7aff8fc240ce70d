"""`gateway.cli.terminal.batches.Batches` over the admin API: those of the tenants that the user may see."""

from gateway.cli.remote.api import PAGE, AdminApi
from gateway.database.errors import Invalid, NotFound
from gateway.records.batches import BatchSummary


class RemoteBatches:
    """Every method raises the errors of `AdminApi`."""

    def __init__(self, api: AdminApi) -> None:
        self._api = api

    def all(self, tenant: str | None, limit: int) -> list[BatchSummary]:
        if limit > PAGE:
            raise Invalid(f"the admin API lists at most {PAGE} batches of a tenant; give a smaller --limit")
        found = [
            BatchSummary.model_validate(each)
            for name in self._tenants(tenant)
            for each in self._api.get("tenants", name, "batches", limit=limit)
        ]
        return sorted(found, key=lambda batch: (batch.created_at, batch.id), reverse=True)[:limit]

    def get(self, batch: str) -> BatchSummary:
        return self._found(batch)

    def cancel(self, batch: str) -> BatchSummary:
        tenant = self._found(batch).tenant
        return BatchSummary.model_validate(self._api.post("tenants", tenant, "batches", batch, "cancel"))

    def _found(self, batch: str) -> BatchSummary:
        for tenant in self._tenants(None):
            try:
                return BatchSummary.model_validate(self._api.get("tenants", tenant, "batches", batch))
            except NotFound:
                continue
        raise NotFound("there is no such batch; see `domicile batch list`")

    def _tenants(self, tenant: str | None) -> list[str]:
        if tenant is not None:
            return [tenant]
        own = self._api.get("me")["tenant"]
        return [each["id"] for each in self._api.pages("tenants")] if own is None else [own]
