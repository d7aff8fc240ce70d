"""What a model consists of: names, sizes and SHA-256 of its files. Also the form of a lock file.

Its digest is the one that the record and deployments name weights by (`backend.answer.weights.checkpoint_digest`).
"""

import hashlib
import json
import re
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from backend.errors import FetchError
from backend.wire import SIGNATURE_FILE, SIGNER_KEY_FILE, is_of_checkpoint

MAX_FILES = 4096
MAX_BYTES = 4 << 20
"""Size limit of a lock file."""
_SAFE = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9._-]{0,99}/)?[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


def is_safe(name: str) -> bool:
    """Whether a file of that name is inside its folder, at most one folder down, on any file system."""
    return _SAFE.fullmatch(name) is not None


def is_wanted(name: str) -> bool:
    """Whether the engine reads it: safetensors, GGUF, JSON, tokenizers, chat templates; or it signs them. Never code,
    never a pickle."""
    return name.endswith(".gguf") or name in (SIGNATURE_FILE, SIGNER_KEY_FILE) or is_of_checkpoint(name)


class ManifestFile(BaseModel):
    """`size` in bytes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    size: int = Field(ge=0)
    sha256: Sha256


class Manifest(BaseModel):
    """`source`: where the files came from, with commit or digest where it has one; not compared."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal["domicile-model/1"] = "domicile-model/1"
    source: str = Field(max_length=2000)
    sha256: Sha256
    files: tuple[ManifestFile, ...] = Field(min_length=1, max_length=MAX_FILES)

    @model_validator(mode="after")
    def _holds(self) -> Self:
        names = [file.name for file in self.files]
        if not all(is_safe(name) and is_wanted(name) for name in names) or len(set(names)) < len(names):
            raise ValueError("names of files that no model has")
        if digest_of(self.files) != self.sha256:
            raise ValueError("sha256 is not that of the files")
        return self

    @classmethod
    def of(cls, source: str, files: tuple[ManifestFile, ...]) -> Self:
        ordered = tuple(sorted(files, key=lambda file: file.name))
        return cls(source=source, sha256=digest_of(ordered), files=ordered)

    @property
    def gguf(self) -> str | None:
        """Name of the GGUF file that is the whole model; None for a folder."""
        return next((file.name for file in self.files if file.name.endswith(".gguf")), None)

    def difference(self, other: Self) -> str | None:
        """Name of a file that is not the same in both; None where all are."""
        mine, theirs = set(self.files), set(other.files)
        return min((file.name for file in mine ^ theirs), default=None)

    def text(self) -> str:
        return json.dumps(self.model_dump(), indent=1) + "\n"


def digest_of(files: tuple[ManifestFile, ...]) -> str:
    """As `backend.answer.weights.checkpoint_digest`: a GGUF file's own, else over digest and name of each file."""
    for file in files:
        if file.name.endswith(".gguf"):
            return file.sha256
    read = [file for file in files if is_of_checkpoint(file.name)]
    lines = (f"{file.sha256}  {file.name}\n" for file in sorted(read, key=lambda file: Path(file.name)))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def read_manifest(path: Path) -> Manifest:
    """Raises FetchError where it cannot be read or is none, and FileNotFoundError."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise FetchError(f"{path.name} is larger than a lock file; name one that `backend fetch -o` wrote")
        return Manifest.model_validate_json(content)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise FetchError(f"{path.name} cannot be read: {error.strerror}; make it readable") from None
    except ValidationError:
        raise FetchError(
            f"{path.name} is no lock file, or was changed; name one that `backend fetch -o` wrote"
        ) from None
