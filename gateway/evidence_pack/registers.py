"""What only people know of the parties: `registers.json` in the data folder (docs/evidence-pack.md).

Names, contacts, contracts and categories of people (GDPR 30, DORA 28(3)). Everything in it goes into evidence packs,
access packages and notices as written; it decides nothing.
"""

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from audit.errors import AuditError
from audit.files.untrusted_file import UnsafeFile, read_untrusted
from audit.incidents.pack_inputs import Contract, Party

NAME = "registers.json"
MAX_BYTES = 1 << 20


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ActivityDetails(_Section):
    """By project id. `source`: where the data come from, if not from the person (GDPR 14(2)(f))."""

    subject_categories: tuple[str, ...] = ()
    source: str = ""


class TenantDetails(_Section):
    controller: Party = Party()
    contract: Contract = Contract()
    activities: dict[str, ActivityDetails] = Field(default_factory=dict)


class Registers(_Section):
    """`processor` is the operator of this installation; `tenants` by id."""

    processor: Party = Party()
    tenants: dict[str, TenantDetails] = Field(default_factory=dict)

    @classmethod
    def load(cls, data: Path) -> "Registers":
        """Registers of the data folder; empty where there is no such file. Raises AuditError if it cannot be read."""
        path = data / NAME
        try:
            text = read_untrusted(path, MAX_BYTES, follow_links=True)
        except FileNotFoundError:
            return cls()
        except UnsafeFile as error:
            raise AuditError(str(error)) from error
        except OSError as error:
            raise AuditError(f"{path} cannot be read: {error.strerror}; check its owner and mode") from error
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"])) or "the file"
            raise AuditError(f"{path}: {where}: {first['msg']}; its form is in docs/evidence-pack.md") from error

    def of(self, tenant: str) -> TenantDetails:
        return self.tenants.get(tenant, TenantDetails())
