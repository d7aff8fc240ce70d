"""Reports that commands read: limits, prices, usage, deployments, names of models, stops.

Here they come from the control database; `gateway.cli.remote.remote_reports` has the same methods over an admin API.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from gateway.store.adapters import adapter_at, adapters_in
from gateway.store.model_names import model_name_at, model_names_in
from gateway.store.oversight import stops_in
from gateway.store.reports.cost_report import cost
from gateway.store.reports.fleet_inventory import deployment_at, deployments_in, replicas_of
from gateway.store.reports.usage_csv import csv_lines, json_lines
from gateway.store.reports.usage_inventory import limits_at, limits_in, prices_in
from gateway.store.reports.usage_report import LedgerEntry, calls, entries, usage

if TYPE_CHECKING:
    from gateway.database.database import Database
    from gateway.records.adapters import AdapterRecord
    from gateway.records.fleet import DeploymentRecord, ReplicaRecord
    from gateway.records.model_names import ModelNameRecord
    from gateway.records.usage import LimitsRecord, PriceRecord
    from gateway.store.oversight import StopRecord
    from gateway.store.reports.cost_report import Cost
    from gateway.store.reports.usage_report import Span, Usage


class Reports:
    """From the control `database` of `cell`. All raise NotFound, DatabaseUnavailable."""

    def __init__(self, database: "Database", cell: str) -> None:
        self._database = database
        self._cell = cell

    def limits_at(self, tenant: str, *, project: str | None, key: str | None) -> "LimitsRecord":
        return limits_at(self._database, tenant, project=project, key=key)

    def limits_in(self, tenant: str) -> "Sequence[LimitsRecord]":
        return limits_in(self._database, tenant)

    def prices(self) -> "Sequence[PriceRecord]":
        return prices_in(self._database, self._cell)

    def deployments(self, tenant: str) -> "Sequence[DeploymentRecord]":
        return deployments_in(self._database, tenant).items

    def deployment(self, tenant: str, deployment: str) -> "DeploymentRecord":
        return deployment_at(self._database, tenant, deployment)

    def replicas(self, tenant: str, deployment: str) -> "Sequence[ReplicaRecord]":
        return replicas_of(self._database, tenant, deployment).items

    def model_names(self, tenant: str, project: str | None) -> "Sequence[ModelNameRecord]":
        return model_names_in(self._database, tenant, project)

    def model_name(self, tenant: str, project: str, name: str) -> "ModelNameRecord":
        return model_name_at(self._database, tenant, project, name)

    def adapters(self, tenant: str, project: str | None) -> "Sequence[AdapterRecord]":
        return adapters_in(self._database, tenant, project)

    def adapter(self, tenant: str, project: str, name: str) -> "AdapterRecord":
        return adapter_at(self._database, tenant, project, name)

    def stops(self, tenant: str) -> "Sequence[StopRecord]":
        return stops_in(self._database, tenant)

    def usage(self, tenant: str | None, by: Sequence[Any], span: Any) -> "Sequence[Usage]":
        return usage(self._database, tenant=tenant, by=by, span=span)

    def cost(self, tenant: str | None, by: Sequence[Any], span: Any) -> "Sequence[Cost]":
        return cost(self._database, tenant=tenant, by=by, span=span)

    def ledger(self, tenant: str | None, span: "Span", *, as_json: bool) -> Iterator[str]:
        """Yield each call that is over, as a line of CSV after a header, or of JSON."""
        rows = entries(self._database, tenant=tenant, span=span)
        return json_lines(rows) if as_json else csv_lines(rows, LedgerEntry)

    def ledger_size(self, tenant: str | None, span: "Span") -> int:
        """Return how many calls `ledger` has."""
        return calls(self._database, tenant=tenant, span=span)
