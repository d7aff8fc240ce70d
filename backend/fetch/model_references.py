"""Names of models: a path on this host, or where else the files are.

s3://BUCKET/PREFIX                          every object under the prefix, or one GGUF file
oci://HOST/REPOSITORY[:TAG|@sha256:DIGEST]  the layers of a manifest
[hf://]ORGANISATION/NAME[/FILE.gguf][@REVISION]   a model of a hub
"""

import re
from dataclasses import dataclass
from pathlib import Path

from backend.errors import FetchError

_WORD = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
_HUB = re.compile(rf"(?:hf://)?({_WORD}/{_WORD})(?:/({_WORD}\.gguf))?(?:@([A-Za-z0-9][A-Za-z0-9._/-]{{0,199}}))?")
_HOST = r"(?:[A-Za-z0-9.-]{1,253}|\[[0-9a-fA-F:]{2,39}\])(?::[0-9]{1,5})?"
_PART = r"[a-z0-9]+(?:[._-]+[a-z0-9]+)*"
_OCI = re.compile(
    rf"oci://({_HOST})/({_PART}(?:/{_PART}){{0,15}})"
    r"(?::([A-Za-z0-9_][A-Za-z0-9._-]{0,127}))?(?:@(sha256:[0-9a-f]{64}))?"
)
_S3 = re.compile(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])/([A-Za-z0-9!_.*'()/=+@ -]{1,900})")


@dataclass(frozen=True, slots=True)
class HubName:
    """`file`: the one GGUF file that is wanted; `revision`: a branch, a tag or a commit."""

    repository: str
    revision: str = "main"
    file: str | None = None

    def __str__(self) -> str:
        return f"hf://{self.repository}{f'/{self.file}' if self.file else ''}@{self.revision}"

    @property
    def is_fixed(self) -> bool:
        """It names content, which never is another."""
        return re.fullmatch("[0-9a-f]{40}", self.revision) is not None

    @property
    def short(self) -> str:
        return Path(self.file).stem if self.file else self.repository.partition("/")[2]


@dataclass(frozen=True, slots=True)
class OciName:
    """`digest`: of the manifest, ``sha256:`` and 64 hexadecimal digits; it holds before `tag`."""

    host: str
    repository: str
    tag: str = "latest"
    digest: str | None = None

    def __str__(self) -> str:
        return f"oci://{self.host}/{self.repository}{f'@{self.digest}' if self.digest else f':{self.tag}'}"

    @property
    def is_fixed(self) -> bool:
        return self.digest is not None

    @property
    def short(self) -> str:
        return self.repository.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class S3Name:
    """`prefix`: a folder's, without the last slash, or the key of one GGUF file."""

    bucket: str
    prefix: str

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}"

    @property
    def is_fixed(self) -> bool:
        return False

    @property
    def short(self) -> str:
        return self.prefix.rpartition("/")[2].removesuffix(".gguf")


RemoteName = HubName | OciName | S3Name


def remote_name(model: str) -> RemoteName | None:
    """None where `model` is a path of this host, or ``demo``. Raises FetchError for what begins as a name elsewhere and
    is none.

    ``a/b`` is a path where there is one, or where the folder ``a`` is here; else a model of the hub.
    """
    scheme, separator, _ = model.partition("://")
    if separator:
        return _with_scheme(scheme, model)
    path = Path(model).expanduser()
    if path.exists() or (path.parent != Path() and path.parent.exists()) or model.endswith("/"):
        return None
    match = _HUB.fullmatch(model)
    if match is None or (match[2] is None and match[1].endswith(".gguf")):
        return None
    return _hub(match)


def _with_scheme(scheme: str, model: str) -> RemoteName:
    if scheme == "hf" and (match := _HUB.fullmatch(model)):
        return _hub(match)
    if scheme == "oci" and (match := _OCI.fullmatch(model)):
        return OciName(match[1], match[2], match[3] or "latest", match[4])
    if scheme == "s3" and (match := _S3.fullmatch(model)) and ".." not in match[2].split("/"):
        return S3Name(match[1], match[2].strip("/"))
    raise FetchError(
        "that names no model; write s3://bucket/prefix, oci://registry/repository:tag, org/name@revision of a hub,"
        " or a path without ://"
    )


def _hub(match: re.Match[str]) -> HubName:
    return HubName(match[1], match[3] or "main", match[2])
