"""What administrators do to the adapters of projects."""

from hashlib import sha256
from typing import Any

from pydantic import ValidationError

from gateway.database.errors import Duplicate, InvalidValue
from gateway.database.tables.models import AdapterRow
from gateway.records.adapters import AdapterRecord, AdapterSetting, is_adapter_name
from gateway.records.model_names import naming_problem
from gateway.store import lookup
from gateway.store.adapters import adapter_record, adapter_row
from gateway.store.change import Administration, Change
from gateway.store.control.models import models_of


class AdapterControl(Administration):
    """An adapter belongs to one project, whose calls name it behind its model, `model: base:adapter`. Backends load it
    when the first call comes, if its digest is the one on record."""

    def create_adapter(self, tenant: str, project: str, name: str, setting: AdapterSetting) -> AdapterRecord:
        """Raises InvalidValue for a model that the tenant does not have, Duplicate, Invalid, NotFound."""
        if not is_adapter_name(name):
            raise InvalidValue("the name is not 1 to 64 letters, digits and ._- ; choose another one")
        with self._change() as change:
            lookup.living_project(change.session, tenant, project)
            row = change.session.get(AdapterRow, (tenant, project, name))
            if row is not None and row.deleted_at is None:
                raise Duplicate(f"project {project!r} has an adapter of that name already; delete it first")
            models = models_of(change.session, tenant)
            if setting.model not in models:
                there = f"name one of {', '.join(sorted(models)[:10])}" if models else "register a backend first"
                raise InvalidValue(f"model: the tenant has no such model; {there}")
            if row is None:
                row = AdapterRow(tenant=tenant, project=project, name=name, **setting.model_dump(), **change.stamp)
                change.session.add(row)
            row.model, row.path, row.sha256, row.deleted_at = setting.model, setting.path, setting.sha256, None
            row.epoch = change.epoch
            return _told(change, "adapter.created", row, None)

    def delete_adapter(self, tenant: str, project: str, name: str) -> AdapterRecord:
        """Calls do not find it within a second; backends drop it when they need its place. Raises NotFound."""
        with self._change() as change:
            row = adapter_row(change.session, tenant, project, name)
            before = adapter_record(row)
            row.deleted_at, row.epoch = change.at, change.epoch
            return _told(change, "adapter.deleted", row, before)


def adapter_setting(**values: Any) -> AdapterSetting:
    """Raises InvalidValue."""
    try:
        return AdapterSetting.model_validate(values)
    except ValidationError as error:
        raise InvalidValue(naming_problem(error)) from None


def _told(change: Change, action: str, row: AdapterRow, before: AdapterRecord | None) -> AdapterRecord:
    record = adapter_record(row)
    target = f"adapter:{sha256(row.name.encode()).hexdigest()[:16]}"  # a name is free text
    change.report(action, row.tenant, target, before, record, project=row.project)
    return record
