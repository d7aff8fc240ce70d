"""Models from an OCI registry: artifacts of ModelPack (CNCF) or ORAS, whose layers are plain files.

OCI distribution specification 1.1; tokens by the registry's ``WWW-Authenticate`` (distribution, token authentication).
User and password are those of ``docker login``, ``oras login`` or ``podman login``: the file of REGISTRY_AUTH_FILE, or
``config.json`` in DOCKER_CONFIG. Programs that it names as helpers are not run.
"""

import base64
import binascii
import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlencode

import httpx2

from backend.errors import FetchError
from backend.fetch.model_manifest import is_wanted
from backend.fetch.model_references import OciName
from backend.fetch.source import Listing, RemoteFile, chosen
from backend.fetch.transport import Anonymous, Transport, is_loopback, origin_of, require_tls

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
NAMES = ("org.opencontainers.image.title", "org.cncf.model.filepath")
"""Annotations of a layer that say what file it is: of ORAS, and of ModelPack."""
MAX_AUTH = 1 << 20
_DIGEST = re.compile("sha256:[0-9a-f]{64}")
_FIELD = re.compile(r'([a-z_]+)="([^"\\]*)"', re.I)


def listing(name: OciName, transport: Transport) -> Listing:
    """The layers of the manifest. Raises FetchError."""
    host = "registry-1.docker.io" if name.host == "docker.io" else name.host
    scheme = "http" if is_loopback(_hostname(host)) else "https"
    base = f"{scheme}://{host}/v2/{name.repository}"
    access = _Login(name, transport, base)
    digest, manifest = _manifest(name, base, name.digest or name.tag, transport, access)
    if manifest.get("mediaType") == INDEX or "manifests" in manifest:
        digest, manifest = _manifest(name, base, _only_one(name, manifest), transport, access)
    source = f"oci://{name.host}/{name.repository}@{digest}"
    files = [_file(name, base, layer) for layer in _list(name, manifest, "layers")]
    return Listing(source, chosen(source, [file for file in files if file is not None]), access)


def _manifest(
    name: OciName, base: str, reference: str, transport: Transport, access: "_Login"
) -> tuple[str, Mapping[str, object]]:
    """Its digest, computed, and what it says. Raises FetchError."""
    url = f"{base}/manifests/{reference}"
    body, _ = transport.document(url, {"accept": f"{MANIFEST}, {INDEX}"}, access)
    digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
    if reference.startswith("sha256:") and digest != reference:
        raise FetchError(f"{name.host} answers with another manifest than {reference}; do not use that registry")
    try:
        manifest = json.loads(body)
    except ValueError:
        manifest = None
    if not isinstance(manifest, dict):
        raise FetchError(f"{name} is no OCI manifest; name an artifact that oras or modctl pushed")
    return digest, manifest


def _only_one(name: OciName, index: Mapping[str, object]) -> str:
    digests = [each.get("digest") for each in _list(name, index, "manifests")]
    if len(digests) != 1 or not isinstance(digests[0], str) or not _DIGEST.fullmatch(digests[0]):
        raise FetchError(f"{name} is an index of {len(digests)} manifests; name one of them by its digest")
    return digests[0]


def _list(name: OciName, manifest: Mapping[str, object], member: str) -> list[Mapping[str, object]]:
    found = manifest.get(member)
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise FetchError(f"{name} has no {member}; name an artifact that oras or modctl pushed")
    return found


def _file(name: OciName, base: str, layer: Mapping[str, object]) -> RemoteFile | None:
    """Return None for a layer that is not a file of a model."""
    annotations = layer.get("annotations")
    said = annotations if isinstance(annotations, dict) else {}
    title = next((said[key] for key in NAMES if isinstance(said.get(key), str)), None)
    media = str(layer.get("mediaType", ""))
    packed = re.search(r"\btar\b|gzip|zstd", media) is not None
    if packed and (title is None or is_wanted(title) or "." not in title.rpartition("/")[2]):
        raise FetchError(
            f"{name} has its files packed in archives ({media[:100]}); push them as they are: `oras push` of files, or"
            " `modctl build --raw`"
        )
    if title is None or not is_wanted(title):
        return None
    digest, size = layer.get("digest"), layer.get("size")
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest) or type(size) is not int:
        raise FetchError(f"{name} says no SHA-256 and size of {title[:80]!r}; push it again")
    return RemoteFile(title, size, f"{base}/blobs/{digest}", sha256=digest.removeprefix("sha256:"))


class _Login(Anonymous):
    """What a registry asks for: nothing, user and password, or a token that it has made from them."""

    def __init__(self, name: OciName, transport: Transport, base: str) -> None:
        self._name, self._transport, self._base = name, transport, base
        self._header: str | None = None

    def headers(self, url: str, headers: Mapping[str, str]) -> Mapping[str, str]:
        return {"authorization": self._header} if self._header else {}

    def renew(self, response: httpx2.Response) -> bool:
        """Raises FetchError where the token cannot be had."""
        challenge = response.headers.get("www-authenticate", "")
        scheme, _, rest = challenge.partition(" ")
        user = _user(self._name.host)
        basic = f"Basic {user}" if user else None
        if scheme.lower() == "basic":
            renewed, self._header = basic not in (None, self._header), basic
            return renewed
        fields = {key.lower(): value for key, value in _FIELD.findall(rest)}
        if scheme.lower() != "bearer" or "realm" not in fields:
            return False
        self._header = f"Bearer {self._token(fields, basic)}"
        return True

    def _token(self, fields: Mapping[str, str], basic: str | None) -> str:
        realm = fields["realm"]
        require_tls(realm)
        if origin_of(realm)[0] != origin_of(self._base)[0] or (
            is_loopback(origin_of(realm)[1]) and not is_loopback(origin_of(self._base)[1])
        ):
            raise FetchError(
                f"{self._name.host} sends its callers into this host for a token; do not use that registry"
            )
        asked = {"scope": f"repository:{self._name.repository}:pull"}  # never more, whatever the registry proposes
        if "service" in fields:
            asked["service"] = fields["service"]
        url = f"{realm}{'&' if '?' in realm else '?'}{urlencode(asked)}"
        body, _ = self._transport.document(url, {"accept": "application/json"}, _Basic(basic))
        try:
            said = json.loads(body)
            token = said.get("token") or said.get("access_token")
        except (ValueError, AttributeError):
            token = None
        if not isinstance(token, str) or not re.fullmatch(r"[\x21-\x7e]{1,65536}", token):
            raise FetchError(f"{self._name.host} gives no token; log in with `oras login` or `docker login`")
        return token


class _Basic(Anonymous):
    def __init__(self, header: str | None) -> None:
        self._header = header

    def headers(self, url: str, headers: Mapping[str, str]) -> Mapping[str, str]:
        return {"authorization": self._header} if self._header else {}


def _user(host: str) -> str | None:
    """``user:password`` in base64, as the file of logins has it. Raises FetchError for a file that is none."""
    named = os.environ.get("REGISTRY_AUTH_FILE")
    folder = os.environ.get("DOCKER_CONFIG")
    path = Path(named) if named else (Path(folder) if folder else Path.home() / ".docker") / "config.json"
    try:
        with path.open("rb") as file:
            said = json.loads(file.read(MAX_AUTH))
        entries = said.get("auths", {})
        keys = (host, f"https://{host}", *(("https://index.docker.io/v1/",) if host == "docker.io" else ()))
        auth = next((entries[key].get("auth") for key in keys if key in entries), None)
        if auth:
            base64.b64decode(auth, validate=True)
        return auth or None
    except FileNotFoundError:
        return None
    except (OSError, ValueError, AttributeError, TypeError, binascii.Error):
        raise FetchError(f"{path} holds no logins that can be read; log in again with `oras login`") from None


def _hostname(host: str) -> str:
    return host[1 : host.index("]")] if host.startswith("[") else host.partition(":")[0]
