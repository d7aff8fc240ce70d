"""LoRA adapters of a project: on which model, from which folder of the backends, and with which weights."""

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
    """What an administrator says of an adapter. `model`: of the tenant, that it is an adapter of. `path`: of its
    folder, below the one that backends keep adapters in. `sha256`: of its weights and configuration, as
    `backend.wire.Adapter` has it: nothing else is loaded under this name."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: Annotated[str, Field(min_length=1, max_length=128)]
    path: Annotated[str, Field(min_length=1, max_length=1024)]
    sha256: Sha256


class AdapterRecord(Record):
    """`deleted_at`: calls do not find it since then."""

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
        """As calls name it, in `model`."""
        return f"{self.model}{ADAPTER_SEPARATOR}{self.name}"


def is_adapter_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None
