"""Stand-ins on loopback for the places that models come from: a hub, and a registry. Each really checks credentials,
serves ranges, and can cut, redirect and lie."""

import base64
import hashlib
import json
import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit


class Answer(Exception):
    """What a handler says instead of a file."""

    def __init__(self, status, body=b"", **headers):
        self.status, self.body, self.headers = status, body, headers


class Place:
    """`files`: bytes by path. `cuts`: by path, after how many bytes the next answers break off. `asked`: (path,
    headers) of each request."""

    honours_ranges = True

    def __init__(self):
        self.files, self.cuts, self.redirects, self.asked = {}, {}, {}, []
        self.gate = threading.Event()
        self.gate.set()
        place = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_GET(self):
                place.answer(self)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.host = f"127.0.0.1:{self.server.server_port}"
        self.url = f"http://{self.host}"

    def answer(self, handler):
        path = unquote(urlsplit(handler.path).path)
        headers = {key.lower(): value for key, value in handler.headers.items()}
        self.asked.append((handler.path, headers))
        self.gate.wait(20)
        try:
            if path in self.redirects:
                raise Answer(302, location=self.redirects[path])
            body = self.body(path, parse_qs(urlsplit(handler.path).query), headers, handler.path)
        except Answer as answer:
            handler.send_response(answer.status)
            for key, value in answer.headers.items():
                handler.send_header(key.replace("_", "-"), value)
            handler.send_header("content-length", str(len(answer.body)))
            handler.end_headers()
            handler.wfile.write(answer.body)
            return
        start, total = 0, len(body)
        if self.honours_ranges and (asked := re.fullmatch(r"bytes=(\d+)-", headers.get("range", ""))):
            start = int(asked[1])
            handler.send_response(206)
            handler.send_header("content-range", f"bytes {start}-{total - 1}/{total}")
        else:
            handler.send_response(200)
        handler.send_header("content-length", str(total - start))
        handler.end_headers()
        body = body[start:]
        if cuts := self.cuts.get(path):
            handler.wfile.write(body[: cuts.pop(0)])
            handler.close_connection = True
            return
        handler.wfile.write(body)

    def body(self, path, query, headers, raw):
        if path not in self.files:
            raise Answer(404)
        return self.files[path]

    def paths(self):
        return [urlsplit(path).path for path, _ in self.asked]


@contextmanager
def running(place):
    thread = threading.Thread(target=place.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield place
    finally:
        place.server.shutdown()
        place.server.server_close()
        thread.join()


COMMIT = "a" * 40


class Hub(Place):
    """`token`: what callers have to show. `listed`: siblings that are listed, by repository; `cdn`: the place that
    large files are redirected to."""

    token = None
    cdn = None

    def __init__(self):
        super().__init__()
        self.listed, self.commits = {}, {}

    def add(self, repository, files, commit=COMMIT, revision="main"):
        """Large files are those with weights, as in Git LFS."""
        siblings = []
        for name, content in files.items():
            sibling = {"rfilename": name, "size": len(content)}
            sibling["blobId"] = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
            if name.endswith((".safetensors", ".gguf", ".bin")):
                digest = hashlib.sha256(content).hexdigest()
                sibling["lfs"] = {"sha256": digest, "size": len(content), "pointerSize": 130}
            siblings.append(sibling)
            path = f"/{repository}/resolve/{commit}/{name}"
            self.files[path] = content
            if self.cdn is not None and "lfs" in sibling:
                self.cdn.files[f"/blob/{name}"] = content
                self.redirects[path] = f"{self.cdn.url}/blob/{name}?signature=SIGNED"
        self.listed[repository, commit] = siblings
        self.commits[repository, revision] = self.commits[repository, commit] = commit

    def body(self, path, query, headers, raw):
        if self.token is not None and headers.get("authorization") != f"Bearer {self.token}":
            raise Answer(401, x_error_code="RepoNotFound")
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+?)(?:/revision/(.+))?", path):
            repository, revision = match[1], match[2] or "main"
            if not any(known == repository for known, _ in self.commits):
                raise Answer(404, x_error_code="RepoNotFound")
            if (repository, revision) not in self.commits:
                raise Answer(404, x_error_code="RevisionNotFound")
            commit = self.commits[repository, revision]
            said = {"id": repository, "sha": commit, "siblings": self.listed[repository, commit]}
            return json.dumps(said).encode()
        return super().body(path, query, headers, raw)


class Registry(Place):
    """An OCI registry whose tokens are made at `/token` from `user` (``name:password``), or for anybody."""

    user = None
    scheme = "Bearer"

    def __init__(self):
        super().__init__()
        self.issued = 0
        self.expired = set()

    def push(self, repository, files, tag="1", annotation="org.opencontainers.image.title", media=None, **more):
        """Digest of the manifest."""
        layers = []
        for name, content in files.items():
            digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
            self.files[f"/v2/{repository}/blobs/{digest}"] = content
            kind = media or "application/vnd.cncf.model.weight.v1.raw"
            layers.append(
                {"mediaType": kind, "digest": digest, "size": len(content), "annotations": {annotation: name}}
            )
        manifest = {
            "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "artifactType": "application/vnd.cncf.model.manifest.v1+json", "layers": layers, **more,
        }  # fmt: skip
        return self.put(repository, manifest, tag)

    def put(self, repository, manifest, tag):
        body = json.dumps(manifest).encode()
        digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
        for reference in (tag, digest):
            self.files[f"/v2/{repository}/manifests/{reference}"] = body
        return digest

    def body(self, path, query, headers, raw):
        if path == "/token":
            if self.user is not None and headers.get("authorization") != f"Basic {_packed(self.user)}":
                raise Answer(401)
            self.issued += 1
            return json.dumps({"token": f"token-{self.issued}-{query['scope'][0]}"}).encode()
        given = headers.get("authorization", "")
        if self.scheme == "Basic":
            if given != f"Basic {_packed(self.user)}":
                raise Answer(401, www_authenticate='Basic realm="models"')
        elif not given.startswith("Bearer token-") or given in self.expired:
            challenge = f'Bearer realm="{self.url}/token",service="models",scope="repository:x:pull,push"'
            raise Answer(401, www_authenticate=challenge)
        return super().body(path, query, headers, raw)


def _packed(user):
    return base64.b64encode(user.encode()).decode()
