"""Backends of one tenant as processes: one computes prompts, one answers; and a gateway's part, played by the test."""

import contextlib
import http.client
import json
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gateway.upstream.request_token import PrefillPlace, RequestSigner
from tests.backend.certificates import Authority, Files
from tests.backend.running import Backend

GATEWAY = "spiffe://domicile.test/tenant/acme/gateway"
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PATH = "/v1/completions"


def uri_of(name: str, tenant: str = "acme") -> str:
    return f"spiffe://domicile.test/tenant/{tenant}/region/eu-fr/backend/{name}"


class Cell:
    """What a cell has: an authority and a key that signs request tokens."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority(folder / "ca")
        self.signer = RequestSigner(KEY)
        self.public = self.signer.write_public(folder / "keys" / "request.pem")
        self.gateway = self.issued("gateway", GATEWAY)

    def issued(self, name: str, uri: str) -> Files:
        return self.authority.issue(name, [x509.UniformResourceIdentifier(uri)])

    def options(self, name: str, tenant: str = "acme") -> tuple[str, ...]:
        files = self.issued(name, uri_of(name, tenant))
        given = {
            "--cert": files.cert, "--key": files.key, "--ca": self.authority.cert, "--request-key": self.public,
            "--peer-uri": f"spiffe://domicile.test/tenant/{tenant}/gateway", "--tenant": tenant, "--region": "eu-fr",
            "--backend-id": name,
        }  # fmt: skip
        return tuple(str(word) for pair in given.items() for word in pair)

    def context(self, files: Files | None = None) -> ssl.SSLContext:
        files = files or self.gateway
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.load_verify_locations(self.authority.cert)
        context.load_cert_chain(files.cert, files.key)
        return context

    @contextmanager
    def backend(self, name: str, model: Path, role: str = "mixed", *options: str) -> Iterator["Member"]:
        served = ("--model", str(model), "--served-name", "tiny", "--role", role, *options)
        with Backend(self.folder / f"{name}.log", *served, *self.options(name)) as process:
            yield Member(self, name, process)


class Interrupted:
    """A wire to a source, over which so many bytes come; then `then` is called, and nothing comes any more."""

    def __init__(self, port: int, most: int, then: Callable[[], None]) -> None:
        self._to, self._most, self._then = port, most, then
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.left = threading.Event()
        """The asker has closed the connection."""
        threading.Thread(target=self._carry, daemon=True).start()

    def _carry(self) -> None:
        with self._listener:
            asker, _ = self._listener.accept()
        with asker, socket.create_connection(("127.0.0.1", self._to)) as source:
            threading.Thread(target=self._questions, args=(asker, source), daemon=True).start()
            while self._most > 0 and (some := source.recv(4096)):
                self._most -= len(some)
                asker.sendall(some)
            self._then()
            self.left.wait(30)

    def _questions(self, asker: socket.socket, source: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while some := asker.recv(4096):
                source.sendall(some)
        self.left.set()


@dataclass
class Member:
    """One running backend."""

    cell: Cell
    name: str
    process: Backend

    def place(self, asker: "Member", port: int | None = None, name: str | None = None) -> PrefillPlace:
        """This one as the one that computes prompts for `asker`."""
        name = name or self.name
        port = port or self.process.ready["transfer_port"]
        return PrefillPlace(name, uri_of(name), "127.0.0.1", port, uri_of(asker.name))

    def complete(self, prompt: list[int], prefill: PrefillPlace | None = None, **body: Any) -> tuple[int, Any]:
        wanted = {"model": "tiny", "prompt": prompt, "max_tokens": 12, "temperature": 0, "ignore_eos": True} | body
        return self.post(PATH, wanted, prefill)

    def post(
        self, path: str, wanted: Any, prefill: PrefillPlace | None = None, project: str = "", method: str = "POST"
    ) -> tuple[int, Any]:
        raw = b"" if wanted is None else json.dumps(wanted).encode()
        lines = self.cell.signer.field(
            tenant="acme",
            backend=self.name,
            method=method,
            path=path,
            project=project,
            decision="acme/1/ab",
            digest=sha256(raw).digest(),
            prefill=prefill,
        )
        headers = dict(line.split(": ", 1) for line in lines.splitlines())
        if project:
            headers["x-domicile-project"] = project
        connection = http.client.HTTPSConnection(
            "127.0.0.1", self.process.port, context=self.cell.context(), timeout=60
        )
        try:
            connection.request(method, path, raw, headers)
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        if answer.headers.get_content_type() == "application/json":
            return answer.status, json.loads(content)
        return answer.status, content.decode()

    def transfers(self, direction: str, outcome: str) -> float:
        return self.metric("domicile_backend_kv_transfers_total", f'direction="{direction}",.*outcome="{outcome}"')

    def metric(self, name: str, labels: str = "") -> float:
        shown = self.post("/metrics", None, method="GET")[1]
        return sum(
            float(line.rsplit(" ", 1)[1])
            for line in shown.splitlines()
            if line.startswith((f"{name}{{", f"{name} ")) and re.search(labels, line)
        )

    def scrubbed(self) -> int:
        """Bytes that are not zero behind a scrub."""
        status, found = self.post("/scrub", {})
        assert status == 200, found
        return int(found["residue_bytes"])

    def measured(self) -> None:
        """Wait until the weights are: before, nothing travels."""
        while self.post("/weights", None, method="GET")[0] != 200:
            pass
