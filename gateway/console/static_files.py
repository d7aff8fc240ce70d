"""Static files of this package: style sheet and scripts, at content-addressed paths, compressed once."""

import gzip
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

FOLDER: Final = Path(__file__).with_name("static")
TYPES: Final = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}


@dataclass(frozen=True, slots=True)
class StaticFile:
    """`version`: part of the path, so that browsers may cache the file for a year."""

    media_type: str
    version: str
    plain: bytes
    compressed: bytes


def _read(path: Path) -> StaticFile:
    content = path.read_bytes()
    packed = gzip.compress(content, 9, mtime=0)
    return StaticFile(TYPES[path.suffix], sha256(content).hexdigest()[:16], content, packed)


FILES: Final = {path.name: _read(path) for path in sorted(FOLDER.iterdir()) if path.suffix in TYPES}


def address(name: str) -> str:
    return f"/console/static/{FILES[name].version}/{name}"


async def serve(request: Request) -> Response:
    """Serve a file; 404 for an unknown name or version."""
    found = FILES.get(request.path_params["name"])
    if found is None or found.version != request.path_params["version"]:
        return Response(status_code=404)
    headers = {"cache-control": "public, max-age=31536000, immutable", "vary": "accept-encoding"}
    packed = "gzip" in request.headers.get("accept-encoding", "")
    if packed:
        headers["content-encoding"] = "gzip"
    content = found.compressed if packed else found.plain
    return Response(content, headers=headers, media_type=found.media_type)
