"""Changes that bring an installation into the state of a folder: as text, and as calls of the control store.

The comparison reads an inventory and reports, and the changes go through a control, either of a data folder or of an
admin API. Commands make the same calls, so the audit record has the same events.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Literal

from gateway.cli.declared.documents import DeclaredDeployment, DeclaredProject, DeclaredTenant, Folder
from gateway.database.errors import NotFound
from gateway.limits.limit_kinds import KINDS, LimitFigures
from gateway.records.control import UNBOUNDED, KeyRecord, PolicyProposalRecord, ProjectRecord
from gateway.records.prices import MICRO
from regions.fleet.deployment import Deployment, Scale

if TYPE_CHECKING:
    from gateway.cli.terminal.reports import Reports
    from gateway.installation.feasibility import Feasibility
    from gateway.records.fleet import DeploymentRecord
    from gateway.store.control.control import Control
    from gateway.store.reports.inventory import Inventory

Sign = Literal["+", "~", "-", "!"]


@dataclass(frozen=True, slots=True)
class Change:
    """A change. `sign`: + create, ~ update, - delete, ! different but not changed by this command. `make` applies the
    change and may return a secret that is shown once; it is None for !."""

    sign: Sign
    what: str
    make: "Callable[[Control], str | None] | None" = None

    def __str__(self) -> str:
        return f"{self.sign} {self.what}"


def changes(
    folder: Folder, inventory: "Inventory", reports: "Reports", *, prune: bool, feasibility: "Feasibility | None"
) -> Iterator[Change]:
    """Yield the changes in the order in which they can be applied. Raises the errors of the inventory.

    prune: also delete projects, keys and deployments of these tenants that the folder does not name; tenants are never
    revoked. feasibility: checked before a deployment is created or grows. None over an admin API: the gateway checks
    there, and policies are proposed, and activated once a second person has approved.
    """
    there = {tenant.id: tenant for tenant in inventory.tenants()}
    for name, tenant in folder.tenants.items():
        if name not in there:
            yield Change("+", f"tenant {name}", _call("create_tenant", name, display_name=tenant.display_name))
        elif there[name].revoked_at is not None:
            yield Change("!", f"tenant {name} is revoked for good; take it out, or use another name")
            continue
        elif tenant.display_name not in (None, there[name].display_name):
            yield Change("!", f"tenant {name}: display_name stays {there[name].display_name!r}; write that")
        yield from _of_tenant(
            name, tenant, folder, inventory, reports, known=name in there, prune=prune, feasibility=feasibility
        )


def _of_tenant(
    name: str,
    tenant: DeclaredTenant,
    folder: Folder,
    inventory: "Inventory",
    reports: "Reports",
    *,
    known: bool,
    prune: bool,
    feasibility: "Feasibility | None",
) -> Iterator[Change]:
    in_force = {one.project: one for one in inventory.policies(name) if one.active} if known else {}
    policy = _way_of_policies(name, inventory, known=known, two_people=feasibility is None)
    yield from policy(name, None, tenant.policy, folder, in_force)
    yield from _limits(name, None, tenant.limits, reports if known else None)
    projects = {one.id: one for one in inventory.projects(name)} if known else {}
    keys = [each for each in inventory.keys(name) if each.revoked_at is None] if known else []
    for project, declared in tenant.projects.items():
        before = projects.get(project)
        yield from _project(name, project, declared, before)
        if before is None or before.revoked_at is None:
            yield from policy(name, project, declared.policy, folder, in_force)
            yield from _limits(name, project, declared.limits, reports if before else None)
            yield from _keys(name, project, declared, keys, prune=prune)
    yield from _fleet(name, tenant, reports if known else None, feasibility, prune=prune)
    yield from _pruned(name, tenant, projects.values(), prune=prune)


def _pruned(name: str, tenant: DeclaredTenant, projects: Iterable[ProjectRecord], *, prune: bool) -> Iterator[Change]:
    for other in projects if prune else ():
        if other.id not in tenant.projects and other.revoked_at is None:
            what = f"project {name}/{other.id}, with its keys"
            yield Change("-", what, _call("revoke_project", name, other.id))


def _fleet(
    name: str, tenant: DeclaredTenant, reports: "Reports | None", feasibility: "Feasibility | None", *, prune: bool
) -> Iterator[Change]:
    """Yield the deletions first, because one deployment serves a model, and another may replace it. `reports` is None
    for a new tenant."""
    known = {one.id: one for one in ([] if reports is None else reports.deployments(name))}
    for one in known.values() if prune else ():
        if one.id not in tenant.deployments and one.deleted_at is None:
            yield Change("-", f"deployment {name}/{one.id}", _call("delete_deployment", name, one.id))
    for deployment, wanted in tenant.deployments.items():
        before = known.get(deployment)
        if before is not None and before.deleted_at is not None:
            yield Change("!", f"deployment {name}/{deployment} was deleted for good; take it out, or use another name")
        else:
            yield from _deployment(name, deployment, wanted, before, feasibility)


def _call(
    method: str, *arguments: Any, check: Callable[[], None] | None = None, **more: Any
) -> "Callable[[Control], str | None]":
    """Return a change that calls this method of the control and shows no secret. `check` raises if it is impossible."""

    def make(control: "Control") -> None:
        if check is not None:
            check()
        getattr(control, method)(*arguments, **more)

    return make


def _policy(
    tenant: str, project: str | None, path: str | None, folder: Folder, in_force: dict[str | None, Any]
) -> Iterator[Change]:
    if path is None:
        return
    document, before = folder.policies[path], in_force.get(project)
    if before is not None and before.sha256 == sha256(document.encode()).hexdigest():
        return
    place = f"{tenant}/{project}" if project else tenant
    sign: Sign = "+" if before is None else "~"
    was = "" if before is None else f", in place of version {before.number}"
    yield Change(sign, f"policy of {place}: {path}{was}", _call("activate_policy", tenant, document, project=project))


def _way_of_policies(
    tenant: str, inventory: "Inventory", *, known: bool, two_people: bool
) -> Callable[..., Iterator[Change]]:
    """Return `_policy`, or its variant for two people. `known`: the tenant exists already."""
    if not two_people:
        return _policy
    return partial(_proposed, inventory.proposals(tenant) if known else [])


def _proposed(
    proposals: "Sequence[PolicyProposalRecord]",
    tenant: str,
    project: str | None,
    path: str | None,
    folder: Folder,
    in_force: dict[str | None, Any],
) -> Iterator[Change]:
    """As `_policy`, for two people: propose a document once, and activate it after another person has approved it."""
    for change in _policy(tenant, project, path, folder, in_force):
        document = folder.policies[path or ""]
        digest = sha256(document.encode()).hexdigest()
        waiting = [
            one
            for one in proposals
            if (one.project, one.sha256) == (project, digest) and one.state in ("submitted", "approved", "scheduled")
        ]
        of = tenant if project is None else f"{tenant} --project {project}"
        if project is not None and None not in in_force:
            yield Change("!", f"{change.what} waits for a policy of {tenant} to be in force; apply again then")
        elif not waiting:
            what = f"{change.what}, proposed; a second person runs `domicile policy list {of}` and `policy approve`"
            yield Change(change.sign, what, _call("submit_policy", tenant, document, project=project, person=""))
        elif (newest := max(waiting, key=lambda one: one.number)).state == "approved":
            what = f"{change.what}, by proposal {newest.number}"
            activate = _call("activate_proposal", tenant, newest.number, project=project, at=None)
            yield Change(change.sign, what, activate)
        elif newest.state == "scheduled":
            yield Change(
                "!", f"{change.what} is in force from {newest.activates_at:%Y-%m-%d %H:%M} UTC; apply again then"
            )
        else:
            wanted = f"domicile policy approve {tenant} {newest.number}" + (
                "" if project is None else f" --project {project}"
            )
            yield Change("!", f"{change.what} waits for a second person: {wanted}; apply again then")


def _limits(tenant: str, project: str | None, wanted: LimitFigures, reports: "Reports | None") -> Iterator[Change]:
    """Yield the change of limits. A limit that is not named is removed. `reports` is None for a new tenant."""
    before = LimitFigures()
    if reports is not None:
        try:
            record = reports.limits_at(tenant, project=project, key=None)
            before = LimitFigures(**{kind.field: getattr(record, kind.field) for kind in KINDS})
        except NotFound:
            pass
    if before == wanted:
        return
    pairs = ((kind.name, getattr(before, kind.field), getattr(wanted, kind.field)) for kind in KINDS)
    said = ", ".join(f"{name} {_amount(old)} -> {_amount(new)}" for name, old, new in pairs if old != new)
    place = f"{tenant}/{project}" if project else tenant
    yield Change("~", f"limits of {place}: {said}", _call("set_limits", tenant, wanted, project=project))


def _amount(value: float | None) -> str:
    return "none" if value is None else f"{value:g}"


def _project(tenant: str, project: str, wanted: DeclaredProject, before: ProjectRecord | None) -> Iterator[Change]:
    activity = wanted.model_dump(include={"purpose", "legal_basis", "data_classes", "risk_class", "ai_system_id"})
    if before is None:
        yield Change("+", f"project {tenant}/{project}", _call("create_project", tenant, project, **activity))
    elif before.revoked_at is not None:
        yield Change("!", f"project {tenant}/{project} is revoked for good; take it out, or use another name")
        return
    else:
        for name, value in activity.items():
            if getattr(before, name) != value:
                yield Change("!", f"project {tenant}/{project}: {name} stays {getattr(before, name)!r}; a project has"
                                  " one processing activity, so make another project")  # fmt: skip
    if tuple(wanted.origins) != (before.origins if before else ()):
        said = ", ".join(wanted.origins) or "none"
        yield Change(
            "~", f"origins of {tenant}/{project}: {said}", _call("set_origins", tenant, project, wanted.origins)
        )


def _keys(
    tenant: str, project: str, wanted: DeclaredProject, of_tenant: list[KeyRecord], *, prune: bool
) -> Iterator[Change]:
    """Yield the changes of keys. `of_tenant`: the tenant's keys that are not revoked."""
    living = [key for key in of_tenant if key.project == project]
    labels = {key.label for key in living}
    for label, declared in wanted.keys.items():
        if label not in labels:
            yield Change("+", f"key {label!r} of {tenant}/{project}", _new_key(tenant, project, label, declared))
    if prune:
        for key in living:
            if key.label not in wanted.keys:
                yield Change(
                    "-", f"key {key.id} ({key.label!r}) of {tenant}/{project}", _call("revoke_key", tenant, key.id)
                )


def _new_key(tenant: str, project: str, label: str, declared: Any) -> "Callable[[Control], str | None]":
    def make(control: "Control") -> str:
        days = declared.expires_in_days
        expires = None if days is None else datetime.now(UTC) + timedelta(days=days)
        _, key = control.create_key(tenant, project, label=label, scopes=UNBOUNDED, expires_at=expires)
        return key.token

    return make


def _deployment(
    tenant: str,
    name: str,
    wanted: DeclaredDeployment,
    before: "DeploymentRecord | None",
    feasibility: "Feasibility | None",
) -> Iterator[Change]:
    scale = Scale(**wanted.model_dump(include=set(Scale.model_fields)))
    if before is None:
        made = Deployment(
            tenant=tenant,
            id=name,
            **wanted.model_dump(exclude={"eur_per_hour"}),
            micro_eur_per_hour=round(wanted.eur_per_hour * MICRO),
        )
        check = None if feasibility is None else partial(feasibility.check_everywhere, made)
        create = _call("create_deployment", made, check=check)
        yield Change("+", f"deployment {tenant}/{name} of {wanted.model}", create)
        return
    for field in ("model", "weights", "regions", "gpu", "wait_s", "eur_per_hour", "kind", "prefill"):
        if getattr(before, field) != getattr(wanted, field):
            yield Change("!", f"deployment {tenant}/{name}: {field} stays {getattr(before, field)!r}; make another"
                              " deployment")  # fmt: skip
    if wanted.weights_sha256 not in (None, before.weights_sha256):
        pin = _call("pin_weights", tenant, name, wanted.weights_sha256)
        yield Change("~", f"deployment {tenant}/{name}: pinned to the weights {wanted.weights_sha256}", pin)
    known = Scale(**before.model_dump(include=set(Scale.model_fields)))
    if known != scale or before.draining:
        said = [
            f"{field} {getattr(known, field)} -> {getattr(scale, field)}"
            for field in Scale.model_fields
            if getattr(known, field) != getattr(scale, field)
        ]
        check = None if feasibility is None else partial(feasibility.check_scale, before, scale)
        change = _call("scale_deployment", tenant, name, scale, check=check)
        yield Change("~", f"deployment {tenant}/{name}: {', '.join(said) or 'works again'}", change)
