"""What drafts of policies would change and how a request would be decided, asked over the admin API."""

from datetime import datetime
from typing import Any

from gateway.cli.remote.api import AdminApi
from gateway.cli.remote.control import policies_path
from policy.analysis.diff import Difference
from policy.analysis.simulate import Group, Impact


class RemoteStudy:
    """As `gateway.cli.terminal.study.Study`. Every method raises the errors of `AdminApi.post`."""

    def __init__(self, api: AdminApi) -> None:
        self._api = api

    def differences(self, tenant: str | None, project: str | None, document: str) -> list[Difference]:
        path = *policies_path(tenant, "policies"), "diff"
        return [Difference(**each) for each in self._api.post(*path, body={"document": document, "project": project})]

    def explanation(
        self, tenant: str, project: str, model: str, document: str | None
    ) -> tuple[dict[str, Any], list[str]]:
        body = {"project": project, "model": model, "document": document}
        said = self._api.post("tenants", tenant, "policies", "explain", body=body)
        return said["decision"], said["lines"]

    def simulated(
        self, tenant: str | None, project: str | None, document: str | None, since: datetime | None
    ) -> list[tuple[str, Impact]]:
        body = {
            "document": document,
            "project": project,
            "dpf_accepted": False if document is None else None,
            "since": None if since is None else since.isoformat(),
        }
        said = self._api.post(*policies_path(tenant, "policies"), "simulate", body=body)
        return [(each["tenant"], _impact(each)) for each in said["tenants"]]


def _impact(said: dict[str, Any]) -> Impact:
    groups = tuple(Group(**each) for each in said["changes"])
    return Impact(calls=said["calls"], same=said["same"], groups=groups, rules=said["rules"])
