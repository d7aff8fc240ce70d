"""Stand-ins on loopback for the places that models come from: a hub, a registry and a bucket. Each really checks
credentials, serves ranges, and can cut, redirect and lie."""

import base64
import hashlib
import hmac
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


class Bucket(Place):
    """An S3 server with the bucket ``models``, by path. Signatures are computed anew from what came in. `page`: objects
    of one answer of a list."""

    secret, session, region, page = "S3CRET", None, "eu-west-3", 1000

    def put(self, files, prefix="llm/small"):
        for name, content in files.items():
            self.files[f"/models/{prefix}/{name}"] = content

    def body(self, path, query, headers, raw):
        self.check(headers, raw)
        if path == "/models/":
            return self.listed(query)
        content = super().body(path, query, headers, raw)
        if headers.get("if-match") not in (None, self.etag(content)):
            raise Answer(412)
        return content

    def check(self, headers, raw):
        given = re.fullmatch(
            r"AWS4-HMAC-SHA256 Credential=AKID/(\d{8}/[a-z0-9-]+/s3/aws4_request),SignedHeaders=([a-z0-9;-]+),"
            r"Signature=([0-9a-f]{64})",
            headers.get("authorization", ""),
        )
        if given is None or headers.get("x-amz-security-token") != self.session:
            raise Answer(403)
        scope, names, signature = given.groups()
        assert {"host", "x-amz-date", "x-amz-content-sha256"} <= set(names.split(";"))
        path, _, query = raw.partition("?")
        lines = "".join(f"{name}:{headers[name]}\n" for name in names.split(";"))
        canonical = "\n".join(("GET", path, query, lines, names, headers["x-amz-content-sha256"]))
        said = ("AWS4-HMAC-SHA256", headers["x-amz-date"], scope, hashlib.sha256(canonical.encode()).hexdigest())
        key = b"AWS4" + self.secret.encode()
        for part in scope.split("/"):
            key = hmac.new(key, part.encode(), hashlib.sha256).digest()
        right = hmac.new(key, "\n".join(said).encode(), hashlib.sha256).hexdigest()
        if right != signature or scope.split("/")[1] != self.region:
            raise Answer(403)

    @staticmethod
    def etag(content):
        return f'"{hashlib.md5(content).hexdigest()}"'

    def listed(self, query):
        prefix, start = query.get("prefix", [""])[0], int(query.get("continuation-token", ["0"])[0].strip("+/= ") or 0)
        keys = sorted(path.removeprefix("/models/") for path in self.files)
        keys = [key for key in keys if key.startswith(prefix)]
        here = keys[start : start + self.page]
        more = start + self.page < len(keys)
        rows = "".join(
            f"<Contents><Key>{key}</Key><Size>{len(self.files['/models/' + key])}</Size>"
            f"<ETag>{self.etag(self.files['/models/' + key]).replace(chr(34), '&quot;')}</ETag></Contents>"
            for key in here
        )
        after = f"<NextContinuationToken>{start + self.page} +/=</NextContinuationToken>" if more else ""
        space = "http://s3.amazonaws.com/doc/2006-03-01/"
        return f'<?xml version="1.0"?><ListBucketResult xmlns="{space}">{rows}{after}</ListBucketResult>'.encode()
