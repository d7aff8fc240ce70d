"""`gateway.store.reports.inventory.Inventory` and `gateway.cli.terminal.reports.Reports` over the admin API, with the
same methods."""

from collections.abc import Iterator, Sequence
from tempfile import TemporaryFile
from typing import Any, NoReturn

from gateway.cli.remote.api import AdminApi
from gateway.cli.remote.control import limits_path, no_such_name, people_path, policies_path
from gateway.database.errors import Invalid, NotFound
from gateway.records.adapters import AdapterRecord
from gateway.records.control import (
    AccessTokenRecord,
    BackendRecord,
    KeyRecord,
    PersonRecord,
    PolicyProposalRecord,
    PolicyVersionRecord,
    ProjectRecord,
    TenantRecord,
)
from gateway.records.fleet import DeploymentRecord, ReplicaRecord
from gateway.records.model_names import ModelNameRecord
from gateway.records.usage import LimitsRecord, PriceRecord
from gateway.store.adapters import no_such_adapter
from gateway.store.oversight import StopRecord
from gateway.store.reports.cost_report import Cost
from gateway.store.reports.usage_report import Span, Usage


class RemoteInventory:
    """Inventory through the admin API. Every method raises the errors of `AdminApi.get`."""

    def __init__(self, api: AdminApi) -> None:
        self._api = api

    def __getattr__(self, name: str) -> NoReturn:
        raise Invalid("this cannot be read over the admin API; run the command on the installation's own host")

    def tenants(self) -> list[TenantRecord]:
        return [TenantRecord.model_validate(each) for each in self._api.pages("tenants")]

    def tenant(self, tenant: str) -> TenantRecord:
        return TenantRecord.model_validate(self._api.get("tenants", tenant))

    def projects(self, tenant: str) -> list[ProjectRecord]:
        return [ProjectRecord.model_validate(each) for each in self._api.pages("tenants", tenant, "projects")]

    def project(self, tenant: str, project: str) -> ProjectRecord:
        return ProjectRecord.model_validate(self._api.get("tenants", tenant, "projects", project))

    def keys(self, tenant: str, project: str | None = None) -> list[KeyRecord]:
        found = self._api.pages("tenants", tenant, "keys", project=project)
        return sorted(map(KeyRecord.model_validate, found), key=lambda key: (key.created_at, key.id))

    def key(self, tenant: str, key_id: str) -> KeyRecord:
        return KeyRecord.model_validate(self._api.get("tenants", tenant, "keys", key_id))

    def people(self, tenant: str | None) -> list[PersonRecord]:
        found = map(PersonRecord.model_validate, self._api.pages(*people_path(tenant)))
        return sorted(found, key=lambda person: (person.created_at, person.id))

    def tokens(self, tenant: str | None, person: str) -> list[AccessTokenRecord]:
        found = map(AccessTokenRecord.model_validate, self._api.pages(*people_path(tenant), person, "tokens"))
        return sorted(found, key=lambda token: (token.created_at, token.id))

    def policies(self, tenant: str | None) -> list[PolicyVersionRecord]:
        """Return the policies of the tenant, then those of its projects, each from a request of its own."""
        projects = [] if tenant is None else sorted(project.id for project in self.projects(tenant))
        found = [
            each
            for project in (None, *projects)
            for each in self._api.pages(*policies_path(tenant, "policies"), project=project)
        ]
        return [PolicyVersionRecord.model_validate(each) for each in found]

    def proposals(self, tenant: str | None) -> list[PolicyProposalRecord]:
        found = self._api.get(*policies_path(tenant, "policy-proposals"))
        return [PolicyProposalRecord.model_validate(each) for each in found]

    def backends(self, tenant: str) -> list[BackendRecord]:
        return [BackendRecord.model_validate(each) for each in self._api.pages("tenants", tenant, "backends")]


class RemoteReports:
    """Reports through the admin API. Every method raises the errors of `AdminApi.get`."""

    def __init__(self, api: AdminApi) -> None:
        self._api = api

    def limits_at(self, tenant: str, *, project: str | None, key: str | None) -> LimitsRecord:
        return LimitsRecord.model_validate(self._api.get(*limits_path(tenant, project, key)))

    def limits_in(self, tenant: str) -> Sequence[LimitsRecord]:
        return [LimitsRecord.model_validate(each) for each in self._api.get("tenants", tenant, "limits", "all")]

    def prices(self) -> Sequence[PriceRecord]:
        return [PriceRecord.model_validate(each) for each in self._api.get("prices")]

    def deployments(self, tenant: str) -> Sequence[DeploymentRecord]:
        return [DeploymentRecord.model_validate(each) for each in self._api.pages("tenants", tenant, "deployments")]

    def deployment(self, tenant: str, deployment: str) -> DeploymentRecord:
        return DeploymentRecord.model_validate(self._api.get("tenants", tenant, "deployments", deployment))

    def replicas(self, tenant: str, deployment: str) -> Sequence[ReplicaRecord]:
        found = self._api.pages("tenants", tenant, "deployments", deployment, "replicas")
        return [ReplicaRecord.model_validate(each) for each in found]

    def model_names(self, tenant: str, project: str | None) -> Sequence[ModelNameRecord]:
        found = self._of_projects(tenant, project, "models")
        return [ModelNameRecord.model_validate(each) for each in found]

    def model_name(self, tenant: str, project: str, name: str) -> ModelNameRecord:
        found = self._api.get("tenants", tenant, "projects", project, "models", name=name)
        if not found:
            raise NotFound(no_such_name(project))
        return ModelNameRecord.model_validate(found[0])

    def adapters(self, tenant: str, project: str | None) -> Sequence[AdapterRecord]:
        return [AdapterRecord.model_validate(each) for each in self._of_projects(tenant, project, "adapters")]

    def adapter(self, tenant: str, project: str, name: str) -> AdapterRecord:
        named = [each for each in self.adapters(tenant, project) if each.name == name]
        if not named:
            raise NotFound(no_such_adapter(project))
        return named[0]

    def _of_projects(self, tenant: str, project: str | None, what: str) -> list[Any]:
        """What one project has, or each of the tenant's, by the name of the project."""
        projects = (
            [project]
            if project is not None
            else sorted(each["id"] for each in self._api.pages("tenants", tenant, "projects"))
        )
        return [each for name in projects for each in self._api.get("tenants", tenant, "projects", name, what)]

    def stops(self, tenant: str) -> Sequence[StopRecord]:
        return [StopRecord.model_validate(each) for each in self._api.get("tenants", tenant, "oversight")]

    def usage(self, tenant: str | None, by: Sequence[Any], span: Span) -> Sequence[Usage]:
        return [Usage.model_validate(each) for each in self._report("usage", tenant, by, span)]

    def cost(self, tenant: str | None, by: Sequence[Any], span: Span) -> Sequence[Cost]:
        return [Cost.model_validate(each) for each in self._report("cost", tenant, by, span)]

    def ledger(self, tenant: str | None, span: Span, *, as_json: bool) -> Iterator[str]:
        path = ("usage",) if tenant is None else ("tenants", tenant, "usage")
        form = "jsonl" if as_json else "csv"
        with TemporaryFile() as file:  # a year of calls is longer than memory
            self._api.download(file.write, *path, "calls", since=span.since, until=span.until, format=form)
            file.seek(0)
            for line in file:
                yield line.decode("utf-8")

    def ledger_size(self, tenant: str | None, span: Span) -> int:
        return 0  # known when all of it is here

    def _report(self, what: str, tenant: str | None, by: Sequence[Any], span: Span) -> Any:
        path = () if tenant is None else ("tenants", tenant)
        more = () if what == "usage" else (what,)
        return self._api.get(*path, "usage", *more, by=list(by), since=span.since, until=span.until)
