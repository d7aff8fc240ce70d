"""Documents of a folder: tenants with projects, keys, limits, policies and deployments.

``python -m gateway.cli.declared.documents`` prints the JSON schema (docs/apply.schema.json).
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from gateway.limits.limit_kinds import LimitFigures
from gateway.records.control import LegalBasis, RiskClass
from gateway.records.prices import MICRO
from policy.errors import invalid_value
from regions.fleet.cards import Cards
from regions.fleet.deployment import MAX_REPLICAS, Kind, Scale, Sha256, check_kind
from regions.identity.identity import NAME

SUFFIXES = (".yaml", ".yml")
POLICIES = "policies"
"""Subfolder for policy documents, which are YAML too."""
MAX_BYTES = 1 << 20

Name = Annotated[str, Field(pattern=f"^{NAME.pattern}$")]


class DocumentError(Exception):
    """A file is invalid. The message names the file and the place."""


class Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class DeclaredKey(Part):
    """A key, identified by its label. Its secret is printed once, when the key is created. `expires_in_days`: counted
    from the creation."""

    expires_in_days: Annotated[int, Field(ge=1, le=36500)] | None = None


class DeclaredProject(Part):
    """A project. `policy`: a file in the folder that restricts the tenant's policy further."""

    purpose: Annotated[str, Field(min_length=1)]
    legal_basis: LegalBasis
    data_classes: tuple[str, ...] = ()
    risk_class: RiskClass = "minimal"
    ai_system_id: str | None = None
    origins: tuple[str, ...] = ()
    policy: str | None = None
    limits: LimitFigures = LimitFigures()
    keys: dict[Annotated[str, Field(min_length=1, max_length=200)], DeclaredKey] = Field(default_factory=dict)


class DeclaredDeployment(Scale):
    """A deployment, with the options of `domicile deployment create`. Cards and prices become what the store keeps: one
    spelling, and whole millionths."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: Annotated[str, Field(min_length=1, max_length=200)]
    weights: Annotated[str, Field(min_length=1, max_length=1000)]
    regions: Annotated[tuple[Name, ...], Field(min_length=1, max_length=16)]
    gpu: Annotated[str, AfterValidator(lambda gpu: str(Cards.parse(gpu)))] = "cpu"
    wait_s: Annotated[int, Field(ge=1, le=3600)] = 120
    eur_per_hour: Annotated[
        float, Field(ge=0, le=10**6, allow_inf_nan=False), AfterValidator(lambda euros: round(euros * MICRO) / MICRO)
    ] = 0.0
    weights_sha256: Sha256 | None = None
    kind: Kind = "mixed"
    prefill: Annotated[int, Field(ge=0, le=MAX_REPLICAS)] = 0

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        check_kind(self.kind, self.prefill)
        if self.min_replicas > self.max_replicas:
            raise ValueError(
                f"{self.min_replicas} replicas at least and {self.max_replicas} at most cannot both hold"
                "; lower the first or raise the second"
            )
        return self


class DeclaredTenant(Part):
    """A tenant. `policy`: a file in the folder."""

    display_name: str | None = None
    policy: str | None = None
    limits: LimitFigures = LimitFigures()
    projects: dict[Name, DeclaredProject] = Field(default_factory=dict)
    deployments: dict[Name, DeclaredDeployment] = Field(default_factory=dict)


class Document(Part):
    """One file. A tenant may be in one file only."""

    tenants: dict[Name, DeclaredTenant]


class Folder(Part):
    """The content of a folder. `policies`: texts of the policy files that the tenants name, by path in the folder."""

    tenants: Mapping[str, DeclaredTenant]
    policies: Mapping[str, str]


def read_folder(folder: Path) -> Folder:
    """Read every YAML file of `folder` except those in ``policies``. Raises DocumentError, OSError."""
    files = sorted(
        file
        for file in folder.rglob("*")
        if file.suffix in SUFFIXES and POLICIES not in file.relative_to(folder).parts[:-1] and not _hidden(file, folder)
    )
    if not files:
        raise DocumentError(f"there is no YAML file in {folder}; write one that begins with tenants:")
    tenants: dict[str, DeclaredTenant] = {}
    for file in files:
        for name, tenant in _read(file).tenants.items():
            if name in tenants:
                raise DocumentError(f"{file}: tenant {name} is in another file too; keep it in one")
            tenants[name] = tenant
    named = {tenant.policy for tenant in tenants.values()}
    named |= {project.policy for tenant in tenants.values() for project in tenant.projects.values()}
    return Folder(tenants=tenants, policies={path: _policy(folder, path) for path in named if path is not None})


def _hidden(file: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in file.relative_to(folder).parts)


def _read(file: Path) -> Document:
    try:
        said: Any = yaml.safe_load(_text(file))
    except yaml.YAMLError as error:
        raise DocumentError(f"{file} is not YAML: {error}; correct the YAML") from error
    try:
        return Document.model_validate(said, strict=False)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "top level"
        raise DocumentError(
            f"{file}: {place}: {invalid_value(first)}; docs/apply.schema.json says what fits"
        ) from error


def _policy(folder: Path, path: str) -> str:
    file = (folder / path).resolve()
    if not file.is_relative_to(folder.resolve()):
        raise DocumentError(f"policy {path} is outside the folder; put it into the folder")
    try:
        return _text(file)
    except OSError as error:
        raise DocumentError(f"policy {path} cannot be read: {error.strerror}; put it into the folder") from error


def _text(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            content = opened.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise DocumentError(f"{file} is larger than {MAX_BYTES} bytes; divide it")
        return content.decode()
    except UnicodeDecodeError as error:
        raise DocumentError(f"{file} is not UTF-8 text; save it as UTF-8") from error


if __name__ == "__main__":
    print(json.dumps(Document.model_json_schema(), indent=1))
