"""LoRA adapters of a project: base model, folder on the backends and digest of the weights."""

import re
from datetime import datetime
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field

from backend.wire import ADAPTER_SEPARATOR
from gateway.records.control import Record

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
AdapterName = Annotated[str, Field(pattern=f"^{_NAME.pattern}$")]
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class AdapterSetting(BaseModel):
    """Settings of an adapter. `model`: its base model, one of the tenant's. `path`: its folder, relative to the folder
    of adapters on the backends. `sha256`: digest of its weights and configuration, as in `backend.wire.Adapter`; only
    an adapter with this digest is loaded under the name."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: Annotated[str, Field(min_length=1, max_length=128)]
    path: Annotated[str, Field(min_length=1, max_length=1024)]
    sha256: Sha256


class AdapterRecord(Record):
    """An adapter as stored. `deleted_at`: calls cannot use it from then on."""

    tenant: str
    project: str
    name: str
    model: str
    path: str
    sha256: str
    created_at: datetime
    deleted_at: datetime | None

    @property
    def called(self) -> str:
        """The name of the adapter in the `model` field of a call."""
        return f"{self.model}{ADAPTER_SEPARATOR}{self.name}"


def is_adapter_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None
