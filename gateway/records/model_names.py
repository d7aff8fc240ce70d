"""Model names of a project: target models in order of preference, default parameters and deprecation."""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Final

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from backend.wire import GenerationRequest
from gateway.records.control import Record

MAX_TARGETS: Final = 8
DEFAULTS: Final = frozenset(
    {"frequency_penalty", "max_tokens", "min_p", "presence_penalty", "repetition_penalty", "seed", "temperature",
     "top_k", "top_p"}
)  # fmt: skip
"""Parameters that may have a default. All are numeric."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,127}")
ModelName = Annotated[str, StringConstraints(pattern=f"^{_NAME.pattern}$")]
"""Pattern of a project's model names."""
Number = int | float


class ModelNaming(BaseModel):
    """Settings of a model name. `targets`: models, the preferred one first. `defaults`: values of parameters that a
    call does not set. `other_vectors`: embeddings may come from a model other than the first. `sunset_at`: planned end
    of the name; `replacement`: the name to use after it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    targets: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=200)], ...], Field(min_length=1, max_length=MAX_TARGETS)
    ]
    defaults: Mapping[str, Number] = Field(default_factory=dict)
    other_vectors: bool = False
    deprecated_at: AwareDatetime | None = None
    sunset_at: AwareDatetime | None = None
    replacement: Annotated[str, Field(min_length=1, max_length=128)] | None = None

    @model_validator(mode="after")
    def _fits(self) -> "ModelNaming":
        if len(set(self.targets)) != len(self.targets):
            raise ValueError("a model is named twice; name each once")
        if self.defaults.keys() - DEFAULTS:
            raise ValueError(f"a parameter has no default here; name some of {', '.join(sorted(DEFAULTS))}")
        try:
            GenerationRequest.model_validate({"model": "x", **self.defaults})
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            raise ValueError(f"{first['loc'][0]}: {first['msg']}; give a value within its range") from None
        if self.sunset_at is not None and (self.deprecated_at is None or self.sunset_at < self.deprecated_at):
            raise ValueError("a name ends after it was deprecated; give deprecated_at, and a later sunset_at")
        return self


class ModelNameRecord(Record):
    """A model name as stored. `deleted_at`: calls cannot use it from then on."""

    tenant: str
    project: str
    name: str
    targets: tuple[str, ...]
    defaults: Mapping[str, Number]
    other_vectors: bool
    deprecated_at: datetime | None
    sunset_at: datetime | None
    replacement: str | None
    deleted_at: datetime | None


def is_model_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def naming_problem(error: ValidationError) -> str:
    """Return the first validation error as one message of the form `<what>; <how to fix it>`."""
    first: Any = error.errors(include_url=False, include_input=False)[0]
    said = str(first["msg"]).removeprefix("Value error, ")
    place: Sequence[Any] = first["loc"]
    where = ".".join(map(str, place))
    said = said if "; " in said else f"{said}; give another value"
    return f"{where}: {said}" if where else said
