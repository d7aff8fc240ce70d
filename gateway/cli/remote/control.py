"""`gateway.store.control.control.Control` over the admin API: the same methods where the API has a route."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, NoReturn, TypeVar

from gateway.cli.remote.api import AdminApi
from gateway.database.errors import Duplicate, Invalid, NotFound
from gateway.identity.keys import ApiKey, parse_key
from gateway.identity.roles import Actor
from gateway.limits.limit_kinds import LimitFigures
from gateway.records.adapters import AdapterRecord, AdapterSetting
from gateway.records.control import (
    AccessTokenRecord,
    BackendRecord,
    KeyRecord,
    PersonRecord,
    PolicyProposalRecord,
    PolicyVersionRecord,
    ProjectRecord,
    Record,
    Scopes,
    TenantRecord,
)
from gateway.records.fleet import DeploymentRecord
from gateway.records.model_names import ModelNameRecord, ModelNaming
from gateway.records.prices import MICRO
from gateway.records.usage import LimitsRecord, PriceRecord
from gateway.store.oversight import StopRecord
from regions.fleet.deployment import Deployment, Scale
from regions.identity.identity import BackendIdentity
from regions.identity.trust import Trust

R = TypeVar("R", bound=Record)


class RemoteControl:
    """Changes through the admin API. The gateway records them with the token's person as actor."""

    def __init__(self, api: AdminApi) -> None:
        self._api = api

    def __getattr__(self, name: str) -> NoReturn:
        raise Invalid("this cannot be done over the admin API; run the command on the installation's own host")

    def actor(self) -> Actor:
        """Return the person or machine that the token belongs to."""
        me = self._api.get("me")
        return Actor(me["person"], me["tenant"], tuple(me["roles"]), "")

    # Tenants and projects

    def create_tenant(self, tenant: str, *, display_name: str | None = None) -> TenantRecord:
        return self._made(TenantRecord, "tenants", body={"id": tenant, "display_name": display_name})

    def revoke_tenant(self, tenant: str) -> TenantRecord:
        return self._made(TenantRecord, "tenants", tenant, "revoke")

    def create_project(self, tenant: str, project: str, **activity: Any) -> ProjectRecord:
        activity["data_classes"] = list(activity["data_classes"])
        return self._made(ProjectRecord, "tenants", tenant, "projects", body={"id": project, **activity})

    def revoke_project(self, tenant: str, project: str) -> ProjectRecord:
        return self._made(ProjectRecord, "tenants", tenant, "projects", project, "revoke")

    def set_origins(self, tenant: str, project: str, origins: Sequence[str]) -> ProjectRecord:
        path = "tenants", tenant, "projects", project, "origins"
        return ProjectRecord.model_validate(self._api.put(*path, body={"origins": list(origins)}))

    # Keys

    def create_key(
        self, tenant: str, project: str, *, label: str, scopes: Scopes, expires_at: datetime | None
    ) -> tuple[KeyRecord, ApiKey]:
        body = {
            "project": project, "label": label, "scopes": scopes.model_dump(mode="json"),
            "expires_at": _said(expires_at),
        }  # fmt: skip
        return self._key(self._api.post("tenants", tenant, "keys", body=body))

    def rotate_key(
        self, tenant: str, key_id: str, *, grace: timedelta, expires_at: datetime | None
    ) -> tuple[KeyRecord, ApiKey]:
        body = {"grace_hours": grace // timedelta(hours=1), "expires_at": _said(expires_at)}
        return self._key(self._api.post("tenants", tenant, "keys", key_id, "rotate", body=body))

    def revoke_key(self, tenant: str, key_id: str) -> KeyRecord:
        return self._made(KeyRecord, "tenants", tenant, "keys", key_id, "revoke")

    @staticmethod
    def _key(said: dict[str, Any]) -> tuple[KeyRecord, ApiKey]:
        token = said.pop("key")
        return KeyRecord.model_validate(said), parse_key(token)

    # Limits and prices

    def set_limits(
        self, tenant: str, figures: LimitFigures, *, project: str | None = None, key: str | None = None
    ) -> LimitsRecord:
        said = self._api.put(*limits_path(tenant, project, key), body=figures.model_dump(mode="json"))
        return LimitsRecord.model_validate(said)

    def set_price(self, model: str, **price: Any) -> PriceRecord:
        body = {name: str(value) if isinstance(value, Decimal) else value for name, value in price.items()}
        body["valid_from"] = _said(price.get("valid_from"))
        return self._made(PriceRecord, "prices", body={"model": model, **body})

    # Model names

    def create_model_name(self, tenant: str, project: str, name: str, naming: ModelNaming) -> ModelNameRecord:
        if self._api.get("tenants", tenant, "projects", project, "models", name=name):
            raise Duplicate(f"project {project!r} has that name already; update it, or choose another one")
        return self._named(tenant, project, name, naming)

    def update_model_name(self, tenant: str, project: str, name: str, naming: ModelNaming) -> ModelNameRecord:
        if not self._api.get("tenants", tenant, "projects", project, "models", name=name):
            raise NotFound(no_such_name(project))
        return self._named(tenant, project, name, naming)

    def _named(self, tenant: str, project: str, name: str, naming: ModelNaming) -> ModelNameRecord:
        body = {"name": name, **naming.model_dump(mode="json")}
        return ModelNameRecord.model_validate(
            self._api.put("tenants", tenant, "projects", project, "models", body=body)
        )

    def delete_model_name(self, tenant: str, project: str, name: str) -> ModelNameRecord:
        path = "tenants", tenant, "projects", project, "models", "delete"
        return self._made(ModelNameRecord, *path, body={"name": name})

    # Adapters

    def create_adapter(self, tenant: str, project: str, name: str, setting: AdapterSetting) -> AdapterRecord:
        body = {"name": name, **setting.model_dump(mode="json")}
        return self._made(AdapterRecord, "tenants", tenant, "projects", project, "adapters", body=body)

    def delete_adapter(self, tenant: str, project: str, name: str) -> AdapterRecord:
        path = "tenants", tenant, "projects", project, "adapters", "delete"
        return self._made(AdapterRecord, *path, body={"name": name})

    # Oversight

    def stop(self, tenant: str, **what: str | None) -> StopRecord:
        return self._made(StopRecord, "tenants", tenant, "oversight", "stop", body=_given(what))

    def resume(self, tenant: str, **what: str | None) -> StopRecord:
        return self._made(StopRecord, "tenants", tenant, "oversight", "resume", body=_given(what))

    # People

    def create_person(self, tenant: str | None, name: str, roles: Sequence[str]) -> PersonRecord:
        return self._made(PersonRecord, *people_path(tenant), body={"display_name": name, "roles": list(roles)})

    def set_roles(self, tenant: str | None, person: str, roles: Sequence[str]) -> PersonRecord:
        said = self._api.put(*people_path(tenant), person, "roles", body={"roles": list(roles)})
        return PersonRecord.model_validate(said)

    def vouch_for_person(self, tenant: str | None, person: str, *, voucher: str) -> PersonRecord:
        return self._made(PersonRecord, *people_path(tenant), person, "vouch")

    def revoke_person(self, tenant: str | None, person: str) -> PersonRecord:
        return self._made(PersonRecord, *people_path(tenant), person, "revoke")

    def create_token(
        self, tenant: str | None, person: str, *, expires_at: datetime, label: str
    ) -> tuple[AccessTokenRecord, ApiKey]:
        body = {"expires_at": _said(expires_at), "label": label}
        said = self._api.post(*people_path(tenant), person, "tokens", body=body)
        token = said.pop("token")
        return AccessTokenRecord.model_validate(said), parse_key(token, "admin")

    def revoke_token(self, tenant: str | None, person: str, token: str) -> AccessTokenRecord:
        return self._made(AccessTokenRecord, *people_path(tenant), person, "tokens", token, "revoke")

    # Policies

    def activate_policy(self, tenant: str | None, document: str, *, project: str | None = None) -> NoReturn:
        raise Invalid(
            "over the admin API a policy takes two people"
            "; use `domicile policy submit`, then `approve` and `activate --proposal`"
        )

    def submit_policy(
        self, tenant: str | None, document: str, *, project: str | None, person: str
    ) -> PolicyProposalRecord:
        body = {"document": document, "project": project}
        return self._made(PolicyProposalRecord, *policies_path(tenant, "policy-proposals"), body=body)

    def approve_policy(
        self, tenant: str | None, number: int, *, person: str, project: str | None
    ) -> PolicyProposalRecord:
        return self._decided(tenant, number, "approve", project)

    def activate_proposal(
        self, tenant: str | None, number: int, *, project: str | None, at: datetime | None
    ) -> PolicyProposalRecord:
        return self._decided(tenant, number, "activate", project, {"at": _said(at)})

    def withdraw_policy(
        self, tenant: str | None, number: int, *, project: str | None, because: str
    ) -> PolicyProposalRecord:
        return self._decided(tenant, number, "withdraw", project, {"because": because})

    def _decided(
        self, tenant: str | None, number: int, what: str, project: str | None, body: Any = None
    ) -> PolicyProposalRecord:
        path = *policies_path(tenant, "policy-proposals"), str(number), what
        return PolicyProposalRecord.model_validate(self._api.post(*path, body=body, project=project))

    def roll_back_policy(self, tenant: str | None, *, project: str | None) -> PolicyVersionRecord:
        path = *policies_path(tenant, "policies"), "rollback"
        return self._made(PolicyVersionRecord, *path, body={"project": project})

    # Backends and deployments

    def register_backend(self, backend: BackendIdentity, **facts: Any) -> BackendRecord:
        trust: Trust = facts["trust"] or Trust()
        if facts["kind"] == "domicile":
            raise Invalid("an engine of ours is enrolled on the installation's own host; run the command there")
        if trust.key_file is not None:
            raise Invalid(
                "over the admin API a key is named, not pathed"
                "; put it into secrets/backends of the gateways and use the API, or run the command on their host"
            )
        euros = facts["eur_per_million"]
        body = {
            "id": backend.backend, "region": backend.region, "url": facts["url"], "models": list(facts["models"]),
            "ca": trust.ca, "name": trust.name, "pin": trust.pin, "plain": trust.plain, "priority": trust.priority,
            "managed": trust.public, "refuse_changed_key": trust.changed_key == "refuse",
            "single_tenant": facts["single_tenant"] is not None,
            "eur_per_million": None if euros is None else str(euros), "weights_sha256": facts.get("weights_sha256"),
        }  # fmt: skip
        return self._made(BackendRecord, "tenants", backend.tenant, "backends", body=body)

    def accept_backend_key(self, tenant: str, backend: str, key_sha256: str) -> BackendRecord:
        path = "tenants", tenant, "backends", backend, "accept-key"
        return self._made(BackendRecord, *path, body={"key_sha256": key_sha256})

    def revoke_backend(self, tenant: str, backend: str) -> BackendRecord:
        return self._made(BackendRecord, "tenants", tenant, "backends", backend, "revoke")

    def create_deployment(self, wanted: Deployment) -> DeploymentRecord:
        state = {"tenant", "micro_eur_per_hour", "draining", "asked", "failures", "failure"}
        kept = wanted.model_dump(mode="json", exclude=state)
        body = {**kept, "eur_per_hour": wanted.micro_eur_per_hour / MICRO}
        return self._made(DeploymentRecord, "tenants", wanted.tenant, "deployments", body=body)

    def scale_deployment(self, tenant: str, deployment: str, figures: Scale) -> DeploymentRecord:
        path = "tenants", tenant, "deployments", deployment, "scale"
        return DeploymentRecord.model_validate(self._api.put(*path, body=figures.model_dump(mode="json")))

    def pin_weights(self, tenant: str, deployment: str, weights_sha256: str) -> DeploymentRecord:
        path = "tenants", tenant, "deployments", deployment, "pin-weights"
        return self._made(DeploymentRecord, *path, body={"weights_sha256": weights_sha256})

    def put_deployment_to_sleep(self, tenant: str, deployment: str) -> DeploymentRecord:
        return self._made(DeploymentRecord, "tenants", tenant, "deployments", deployment, "sleep")

    def wake_deployment(self, tenant: str, deployment: str) -> DeploymentRecord:
        return self._made(DeploymentRecord, "tenants", tenant, "deployments", deployment, "wake")

    def drain_deployment(self, tenant: str, deployment: str) -> DeploymentRecord:
        return self._made(DeploymentRecord, "tenants", tenant, "deployments", deployment, "drain")

    def delete_deployment(self, tenant: str, deployment: str) -> DeploymentRecord:
        return self._made(DeploymentRecord, "tenants", tenant, "deployments", deployment, "delete")

    def _made(self, kind: type[R], *path: str, body: Any = None) -> R:
        return kind.model_validate(self._api.post(*path, body=body))


def no_such_name(project: str) -> str:
    """Return the store's message for an unknown model name."""
    return f"project {project!r} has no such name; `domicile model list` shows those there are"


def limits_path(tenant: str, project: str | None, key: str | None) -> tuple[str, ...]:
    """Return the API path of the limits of a tenant, a project or a key."""
    if key is not None:
        return "tenants", tenant, "keys", key, "limits"
    return ("tenants", tenant, "projects", project, "limits") if project else ("tenants", tenant, "limits")


def people_path(tenant: str | None) -> tuple[str, ...]:
    """Return the API path of a tenant's people, or of the operator's staff."""
    return ("tenants", tenant, "people") if tenant is not None else ("staff",)


def policies_path(tenant: str | None, what: str) -> tuple[str, ...]:
    """Return the API path of a tenant's policies or proposals, or of the operator's."""
    return ("tenants", tenant, what) if tenant is not None else ("operator", what)


def _said(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()


def _given(values: dict[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in values.items() if value is not None}
