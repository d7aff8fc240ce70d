"""Models of an S3 bucket, at AWS or at another server that speaks its protocol (AWS_ENDPOINT_URL_S3).

GET alone, signed by AWS Signature Version 4 (docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html).
Keys are those of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and AWS_SESSION_TOKEN), or of the file of
AWS_SHARED_CREDENTIALS_FILE; without any, objects that are public can be had.
"""

import configparser
import hashlib
import hmac
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote, urlsplit
from xml.parsers import expat

from backend.errors import FetchError
from backend.fetch.model_references import S3Name
from backend.fetch.source import Listing, RemoteFile, chosen
from backend.fetch.transport import Access, Anonymous, Transport, require_tls

EMPTY = hashlib.sha256(b"").hexdigest()
MAX_PAGES = 20
"""Pages of a thousand objects each."""


@dataclass(frozen=True, slots=True)
class Keys:
    """`session`: the token of temporary ones."""

    id: str
    secret: str = field(repr=False)
    session: str | None = field(default=None, repr=False)


class Signed(Anonymous):
    """Signature Version 4 for one region. `now`: the time, in UTC."""

    def __init__(self, keys: Keys, region: str, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._keys, self._region, self._now = keys, region, now

    def headers(self, url: str, headers: Mapping[str, str]) -> Mapping[str, str]:
        """`url` as it is sent: its path quoted, its query quoted and in order."""
        parts = urlsplit(url)
        time = self._now().strftime("%Y%m%dT%H%M%SZ")
        own = {"x-amz-content-sha256": EMPTY, "x-amz-date": time}
        if self._keys.session:
            own["x-amz-security-token"] = self._keys.session
        signed = {"host": parts.netloc.lower(), **{key.lower(): value.strip() for key, value in headers.items()}, **own}
        names = ";".join(sorted(signed))
        lines = "".join(f"{key}:{signed[key]}\n" for key in sorted(signed))
        request = f"GET\n{parts.path or '/'}\n{parts.query}\n{lines}\n{names}\n{EMPTY}"
        scope = f"{time[:8]}/{self._region}/s3/aws4_request"
        text = f"AWS4-HMAC-SHA256\n{time}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
        key = f"AWS4{self._keys.secret}".encode()
        for part in scope.split("/"):
            key = hmac.digest(key, part.encode(), "sha256")
        signature = hmac.digest(key, text.encode(), "sha256").hex()
        credential = f"AWS4-HMAC-SHA256 Credential={self._keys.id}/{scope}"
        return {**own, "authorization": f"{credential},SignedHeaders={names},Signature={signature}"}


def listing(name: S3Name, transport: Transport) -> Listing:
    """The objects under the prefix. Raises FetchError."""
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
    base = _base(name.bucket, region)
    keys = _keys()
    access: Access = Anonymous() if keys is None else Signed(keys, region)
    only = name.prefix.rpartition("/")[2] if name.prefix.endswith(".gguf") else None
    folder = name.prefix[: -len(only)] if only else f"{name.prefix}/"
    files = [
        RemoteFile(each.key.removeprefix(folder), each.size, f"{base}/{_quoted(each.key)}", etag=each.etag)
        for each in _objects(base, f"{folder}{only or ''}", transport, access)
        if each.key.startswith(folder) and not each.key.endswith("/")
    ]
    return Listing(str(name), chosen(str(name), files, only), access)


@dataclass(slots=True)
class _Object:
    key: str = ""
    size: int = -1
    etag: str | None = None


def _objects(base: str, prefix: str, transport: Transport, access: Access) -> Iterator[_Object]:
    after = ""
    for _ in range(MAX_PAGES):
        token = f"continuation-token={quote(after, safe='-_.~')}&" if after else ""
        url = f"{base}/?{token}list-type=2&prefix={quote(prefix, safe='-_.~')}"
        body, _ = transport.document(url, {}, access)
        page = _Page(body)
        yield from page.objects
        if not page.after:
            return
        after = page.after
    raise FetchError(f"more than {MAX_PAGES} pages of objects are there; name a prefix that is one model")


class _Page:
    """An answer of ListObjectsV2. Raises FetchError for what is none; document types are refused, for what they define
    may grow without end."""

    def __init__(self, body: bytes) -> None:
        self.objects: list[_Object] = []
        self.after = ""
        self._path: list[str] = []
        self._text: list[str] = []
        parser = expat.ParserCreate()
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._text.append
        parser.StartDoctypeDeclHandler = _refuse
        try:
            parser.Parse(body, True)
        except (expat.ExpatError, ValueError):
            raise FetchError("the bucket answers with no list of objects; check the endpoint and its name") from None

    def _start(self, name: str, _attributes: dict[str, str]) -> None:
        self._path.append(name)
        self._text.clear()
        if self._path == ["ListBucketResult", "Contents"]:
            self.objects.append(_Object())
        elif self._path[0] != "ListBucketResult":
            raise ValueError

    def _end(self, _name: str) -> None:
        text = "".join(self._text)
        match self._path[1:]:
            case ["Contents", "Key"]:
                self.objects[-1].key = text
            case ["Contents", "Size"]:
                self.objects[-1].size = int(text)
            case ["Contents", "ETag"]:
                self.objects[-1].etag = text if re.fullmatch(r'"[\x21\x23-\x7e]{1,200}"', text) else None
            case ["NextContinuationToken"]:
                self.after = text
        self._path.pop()
        self._text.clear()


def _refuse(*_: object) -> None:
    raise ValueError


def _base(bucket: str, region: str) -> str:
    """Where the bucket is; by path at servers of one's own, which seldom have a name for each bucket."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if endpoint:
        require_tls(endpoint)
        return f"{endpoint.rstrip('/')}/{bucket}"
    if not re.fullmatch("[a-z0-9-]{1,40}", region):
        raise FetchError("AWS_REGION names no region; set it as AWS writes it, such as eu-west-3")
    host = f"s3.{region}.amazonaws.com"
    return f"https://{host}/{bucket}" if "." in bucket else f"https://{bucket}.{host}"


def _quoted(key: str) -> str:
    return quote(key, safe="/-_.~")


def _keys() -> Keys | None:
    """Credentials of the environment, else of the file. Raises FetchError where only half of them is there."""
    said: Mapping[str, str] = {key.lower(): value for key, value in os.environ.items() if key.startswith("AWS_")}
    if "aws_access_key_id" not in said and "aws_secret_access_key" not in said:
        said = _profile()
    if not said:
        return None
    try:
        return Keys(said["aws_access_key_id"], said["aws_secret_access_key"], said.get("aws_session_token"))
    except KeyError as error:
        raise FetchError(f"{error.args[0].upper()} is missing; set both parts of the key") from None


def _profile() -> Mapping[str, str]:
    named = os.environ.get("AWS_SHARED_CREDENTIALS_FILE")
    path = Path(named).expanduser() if named else Path.home() / ".aws" / "credentials"
    parser = configparser.RawConfigParser()
    try:
        parser.read_string(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, configparser.Error, UnicodeDecodeError):
        raise FetchError(f"{path} holds no credentials that can be read; write it as `aws configure` does") from None
    profile = os.environ.get("AWS_PROFILE", "default")
    return dict(parser[profile]) if parser.has_section(profile) else {}
