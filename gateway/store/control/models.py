"""What administrators do to the names that projects give to models."""

from hashlib import sha256
from typing import Any

from pydantic import ValidationError
from sqlmodel import Session, col, select

from gateway.database.errors import Duplicate, InvalidValue
from gateway.database.tables.control import BackendRow
from gateway.database.tables.fleet import DeploymentRow
from gateway.database.tables.models import ModelNameRow
from gateway.records.model_names import ModelNameRecord, ModelNaming, is_model_name, naming_problem
from gateway.store import lookup
from gateway.store.change import Administration, Change
from gateway.store.model_names import model_name, model_name_record


class ModelNameControl(Administration):
    """A name is resolved once: it stands for models and never for another name, so no name leads back to itself. A name
    may be that of a model, and begin with it: then it is the fallbacks, defaults and notices of that model."""

    def create_model_name(self, tenant: str, project: str, name: str, naming: ModelNaming) -> ModelNameRecord:
        """In force in every gateway within a second. Raises InvalidValue for a model that the tenant does not have and
        for another name, Duplicate, Invalid, NotFound."""
        if not is_model_name(name):
            raise InvalidValue("the name is not 1 to 128 letters, digits and ._:/@+- ; choose another one")
        with self._change() as change:
            lookup.living_project(change.session, tenant, project)
            row = change.session.get(ModelNameRow, (tenant, project, name))
            if row is not None and row.deleted_at is None:
                raise Duplicate(f"project {project!r} has that name already; update it, or choose another one")
            _check(change.session, tenant, project, name, naming)
            if row is None:
                row = ModelNameRow(
                    tenant=tenant,
                    project=project,
                    name=name,
                    targets=[],
                    defaults={},
                    other_vectors=False,
                    **change.stamp,
                )
                change.session.add(row)
            row.deleted_at = None
            return _put(change, "model_name.created", row, None, naming)

    def update_model_name(self, tenant: str, project: str, name: str, naming: ModelNaming) -> ModelNameRecord:
        """What it stands for is replaced as a whole. Raises as `create_model_name`, NotFound without such a name."""
        with self._change() as change:
            lookup.living_project(change.session, tenant, project)
            row = model_name(change.session, tenant, project, name)
            _check(change.session, tenant, project, name, naming)
            return _put(change, "model_name.changed", row, model_name_record(row), naming)

    def delete_model_name(self, tenant: str, project: str, name: str) -> ModelNameRecord:
        """From then on the name is that of a model, where there is one. Raises NotFound."""
        with self._change() as change:
            row = model_name(change.session, tenant, project, name)
            before = model_name_record(row)
            row.deleted_at, row.epoch = change.at, change.epoch
            return _told(change, "model_name.deleted", row, before)


def named(**values: Any) -> ModelNaming:
    """Raises InvalidValue."""
    try:
        return ModelNaming.model_validate(values)
    except ValidationError as error:
        raise InvalidValue(naming_problem(error)) from None


def _put(
    change: Change, action: str, row: ModelNameRow, before: ModelNameRecord | None, naming: ModelNaming
) -> ModelNameRecord:
    row.targets, row.defaults = list(naming.targets), dict(naming.defaults)
    row.other_vectors = naming.other_vectors
    row.deprecated_at, row.sunset_at, row.replacement = naming.deprecated_at, naming.sunset_at, naming.replacement
    row.epoch = change.epoch
    return _told(change, action, row, before)


def _told(change: Change, action: str, row: ModelNameRow, before: ModelNameRecord | None) -> ModelNameRecord:
    record = model_name_record(row)
    # A model's name is free text, and free text is not recorded.
    target = f"model:{sha256(row.name.encode()).hexdigest()[:16]}"
    change.report(action, row.tenant, target, before, record, project=row.project)
    return record


def _check(session: Session, tenant: str, project: str, name: str, naming: ModelNaming) -> None:
    """Raises InvalidValue."""
    models = models_of(session, tenant)
    others = {row.name: row for row in session.exec(_names(tenant, project)) if row.name != name}
    for number, target in enumerate(naming.targets):  # what was sent is never repeated
        at = f"targets.{number}"
        if target != name and target in others and others[target].targets[0] != target:
            raise InvalidValue(f"{at}: it is itself a name of this project; name the models that it stands for")
        if target not in models:
            raise InvalidValue(f"{at}: the tenant has no such model; {_there_are(models)}")
    for other in others.values():
        if name in other.targets and naming.targets[0] != name:
            raise InvalidValue("name: a model of this name is the target of another name; change the other one first")
    known = models | others.keys()
    if naming.replacement is not None and (naming.replacement not in known or naming.replacement == name):
        raise InvalidValue(f"replacement: it is not there; {_there_are(known - {name})}")


def _there_are(names: set[str]) -> str:
    return f"name one of {', '.join(sorted(names)[:10])}" if names else "register a backend first"


def _names(tenant: str, project: str) -> Any:
    living = col(ModelNameRow.deleted_at).is_(None)
    return select(ModelNameRow).where(ModelNameRow.tenant == tenant, ModelNameRow.project == project, living)


def models_of(session: Session, tenant: str) -> set[str]:
    """Those of backends and of deployments that are there now."""
    serving = select(BackendRow.models).where(BackendRow.tenant == tenant, col(BackendRow.revoked_at).is_(None))
    deployed = select(DeploymentRow.model).where(
        DeploymentRow.tenant == tenant, col(DeploymentRow.deleted_at).is_(None)
    )
    return {model for models in session.exec(serving) for model in models} | set(session.exec(deployed))
