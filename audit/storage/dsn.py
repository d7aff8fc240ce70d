"""Which database a PostgreSQL URL names, without user and password.

A URL may hold a password, so no message of this module repeats any part of one.
"""

import re
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote

from audit.errors import StoreError

DEFAULT_PORT = 5432

_URL = re.compile(r"postgres(?:ql)?(?:\+psycopg)?://(?P<authority>[^/?#]*)(?P<path>/[^?#]*)?(?:\?(?P<query>[^#]*))?")
_HOST = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%]+\]|[^:\[\]@\s]*)(?::(?P<port>[0-9]{1,5})?)?")


@dataclass(frozen=True, slots=True)
class ServerDatabase:
    """`host` reads ``name:port``, comma-separated where the URL names several servers, or is a socket's folder."""

    host: str
    database: str

    def __str__(self) -> str:
        return f"database {self.database!r} on {self.host}"


def database_of(url: str, source: str) -> ServerDatabase:
    """The database that `url` (``postgresql://user:password@host:port/name``) names; `source` says where it was read.

    Raises StoreError, naming `source` and never the URL, for one that libpq could not use either.
    """
    match = _URL.fullmatch(url) if url.isprintable() and " " not in url else None
    if match is None:
        raise StoreError(f"{source} is not the URL of a database; write postgresql://user:password@host:port/name")
    user, _, hosts = match["authority"].rpartition("@")
    query = dict(parse_qsl(match["query"] or "", keep_blank_values=True))
    if query.get("host"):
        ports = query.get("port", "").split(",")
        named = [f"{host}:{ports[min(i, len(ports) - 1)]}" for i, host in enumerate(query["host"].split(","))]
    else:
        named = hosts.split(",")
    database = (
        query.get("dbname") or unquote((match["path"] or "").removeprefix("/")) or unquote(user.partition(":")[0])
    )
    return ServerDatabase(",".join(_server(host, query.get("port"), source) for host in named), database or "postgres")


def _server(text: str, port: str | None, source: str) -> str:
    text = unquote(text)
    if text.startswith("/"):  # a Unix socket: the folder it is in, and the number in its name
        folder, _, number = text.rpartition(":")
        return f"{folder}:{number or DEFAULT_PORT}" if folder else text
    match = _HOST.fullmatch(text)
    number = match["port"] or port or str(DEFAULT_PORT) if match else ""
    if match is None or not number.isascii() or not number.isdigit() or not 1 <= int(number) <= 65535:
        raise StoreError(f"{source} names no valid host and port; write postgresql://user:password@host:port/name")
    return f"{(match['host'] or 'localhost').lower()}:{int(number)}"
