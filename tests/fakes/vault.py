"""A Vault that holds one transit engine, on loopback. Written from the documented API: it refuses what Vault refuses.

Derived keys: one AES-256-GCM key a context and version, by HMAC, as Vault derives by HKDF.
"""

import base64
import hmac
import json
import os
import ssl
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

TOKEN = "hvs.CAESIFakeTokenOfATest"
CREATABLE = {"aes256-gcm96": False, "ed25519": True, "aes128-gcm96": False, "rsa-2048": True}


class Refusal(Exception):
    def __init__(self, status, *errors):
        self.status, self.errors = status, errors


@dataclass
class Key:
    type: str
    derived: bool = False
    exportable: bool = False
    versions: dict = field(default_factory=dict)
    latest: int = 0
    min_decryption: int = 1
    min_encryption: int = 0
    min_available: int = 0

    def rotate(self):
        self.latest += 1
        made = Ed25519PrivateKey.generate() if self.type == "ed25519" else os.urandom(32)
        self.versions[self.latest] = made

    def secret(self, version, context):
        if not self.derived:
            if context:
                raise Refusal(400, "provided context, but key is not derived")
            return self.versions[version]
        if not context:
            raise Refusal(400, "missing 'context' for key derivation; the key was created using a derived key")
        return hmac.digest(self.versions[version], context, "sha256")


@dataclass
class FakeVault:
    """`fail` is a list of statuses (or 'hang', 'drop') to answer the next calls with, before anything is done."""

    url: str = ""
    tokens: set = field(default_factory=lambda: {TOKEN})
    namespace: str | None = None
    sealed: bool = False
    forbidden: tuple = ()
    fail: list = field(default_factory=list)
    fail_after: list = field(default_factory=list)  # the same, once it is done
    body: bytes | None = None
    keys: dict = field(default_factory=dict)
    calls: list = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, method, path, headers, raw):
        with self.lock:
            self.calls.append((method, path))
            if self.sealed:
                raise Refusal(503, "Vault is sealed")
            if headers.get("x-vault-namespace") != self.namespace:
                raise Refusal(404, "no handler for route")
            if headers.get("x-vault-token") not in self.tokens:
                raise Refusal(403, "permission denied")
            if not path.startswith("/v1/transit/"):
                raise Refusal(404, f"no handler for route {path.removeprefix('/v1/')!r}. route entry not found.")
            verb, _, lifecycle = path.removeprefix("/v1/transit/").partition("/")
            if verb in self.forbidden or f"{verb}/{lifecycle}" in self.forbidden:
                raise Refusal(403, "1 error occurred:\n\t* permission denied\n\n")
            try:
                body = json.loads(raw) if raw else {}
            except ValueError:
                raise Refusal(400, "failed to parse JSON input") from None
            return self.route(method, verb, lifecycle, body)

    def route(self, method, verb, lifecycle, body):
        name, _, action = lifecycle.partition("/")
        if verb == "keys" and method == "GET" and not action:
            return self.read(name)
        if method != "POST" and method != "PUT":
            raise Refusal(405, "unsupported operation")
        if verb == "keys":
            return self.manage(name, action, body)
        if verb not in ("encrypt", "decrypt", "rewrap", "sign"):
            raise Refusal(404, "unsupported path")
        key = self.keys.get(name)
        if key is None:
            raise Refusal(400, "signing key not found" if verb == "sign" else "encryption key not found")
        return getattr(self, verb)(key, body)

    def read(self, name):
        key = self.keys.get(name)
        if key is None:
            raise Refusal(404)
        held = {}
        for version in range(max(key.min_decryption, key.min_available), key.latest + 1):
            made = key.versions[version]
            public = base64.b64encode(made.public_key().public_bytes_raw()).decode() if CREATABLE[key.type] else None
            held[str(version)] = 1442851412 if public is None else {"name": key.type, "public_key": public}
        return {
            "name": name, "type": key.type, "derived": key.derived, "exportable": key.exportable, "keys": held,
            "allow_plaintext_backup": False, "deletion_allowed": False, "latest_version": key.latest,
            "min_available_version": key.min_available, "min_decryption_version": key.min_decryption,
            "min_encryption_version": key.min_encryption, "supports_signing": CREATABLE[key.type],
        }  # fmt: skip

    def manage(self, name, action, body):
        if not action:
            if name not in self.keys:
                kind = body.get("type", "aes256-gcm96")
                if kind not in CREATABLE:
                    raise Refusal(400, f"unknown key type {kind}")
                self.keys[name] = Key(kind, bool(body.get("derived")), bool(body.get("exportable")))
                self.keys[name].rotate()
            return None
        key = self.keys.get(name)
        if key is None:
            raise Refusal(404 if action == "rotate" else 400, "key not found" if action == "rotate" else "no such key")
        if action == "rotate":
            key.rotate()
        elif action == "config":
            decryption = body.get("min_decryption_version", key.min_decryption)
            encryption = body.get("min_encryption_version", key.min_encryption)
            if decryption > key.latest or encryption > key.latest:
                raise Refusal(400, f"cannot set min version of {decryption}, latest key version is {key.latest}")
            if 0 < encryption < decryption:
                raise Refusal(400, "cannot set min encryption version lower than min decryption version")
            key.min_decryption, key.min_encryption = decryption, encryption
        elif action == "trim":
            wanted = body.get("min_available_version")
            if not wanted:
                raise Refusal(400, "missing min_available_version")
            if key.min_encryption == 0:
                raise Refusal(400, "minimum available version cannot be set when minimum encryption version is not set")
            if wanted < key.min_available:
                raise Refusal(400, "minimum available version cannot be decremented")
            if wanted > min(key.min_decryption, key.min_encryption):
                raise Refusal(400, "minimum available version cannot be higher than minimum decryption version")
            key.min_available = wanted
            for version in [version for version in key.versions if version < wanted]:
                del key.versions[version]
        else:
            raise Refusal(404, "unsupported path")
        return None

    def encrypt(self, key, body):
        return {"ciphertext": self._seal(key, _bytes(body, "plaintext"), _context(body), body.get("key_version", 0))}

    def decrypt(self, key, body):
        return {"plaintext": base64.b64encode(self._open(key, body)).decode()}

    def rewrap(self, key, body):
        return {"ciphertext": self._seal(key, self._open(key, body), _context(body), 0)}

    def sign(self, key, body):
        if not CREATABLE[key.type]:
            raise Refusal(400, f"key type {key.type} does not support signing")
        version = body.get("key_version") or key.latest
        if version not in key.versions or version < key.min_encryption:
            raise Refusal(400, "cannot sign with this version")
        signature = key.versions[version].sign(_bytes(body, "input"))
        return {"signature": f"vault:v{version}:{base64.b64encode(signature).decode()}", "key_version": version}

    def _seal(self, key, plain, context, version):
        if CREATABLE[key.type]:
            raise Refusal(400, f"message encryption not supported for key type {key.type}")
        version = version or key.latest
        nonce = os.urandom(12)
        sealed = nonce + AESGCM(key.secret(version, context)).encrypt(nonce, plain, None)
        return f"vault:v{version}:{base64.b64encode(sealed).decode()}"

    def _open(self, key, body):
        text = body.get("ciphertext")
        if not text:
            raise Refusal(400, "missing ciphertext to decrypt")
        if not text.startswith("vault:v"):
            raise Refusal(400, "invalid ciphertext: no prefix")
        number, _, payload = text.removeprefix("vault:v").partition(":")
        version = int(number)
        if version > key.latest:
            raise Refusal(400, "invalid ciphertext: version is too new")
        if version < key.min_decryption:
            raise Refusal(400, "ciphertext or signature version is disallowed by policy (too old)")
        try:
            sealed = base64.b64decode(payload, validate=True)
            return AESGCM(key.secret(version, _context(body))).decrypt(sealed[:12], sealed[12:], None)
        except InvalidTag:
            raise Refusal(400, "cipher: message authentication failed") from None
        except ValueError:
            raise Refusal(400, "invalid ciphertext: could not decode base64") from None


def _bytes(body, name):
    value = body.get(name)
    if value is None:
        raise Refusal(400, f"missing {name}")
    try:
        return base64.b64decode(value, validate=True)
    except ValueError:
        raise Refusal(400, f"failed to base64-decode {name}") from None


def _context(body):
    return _bytes(body, "context") if body.get("context") else b""


@contextmanager
def running_vault(vault=None, *, tls: ssl.SSLContext | None = None):
    """Serve it inside the block; its address is in `url`."""
    vault = vault or FakeVault()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self):
            raw = self.rfile.read(int(self.headers.get("content-length") or 0))
            if self.obey(vault.fail):
                return
            try:
                data = vault.answer(self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, raw)
            except Refusal as refusal:
                self.send(refusal.status, {"errors": list(refusal.errors)})
                return
            if self.obey(vault.fail_after):
                return
            if vault.body is not None:
                self.send(200, vault.body)
            elif data is None:
                self.send(204, None)
            else:
                envelope = {"request_id": "r", "lease_id": "", "renewable": False, "lease_duration": 0}
                self.send(200, {**envelope, "data": data, "wrap_info": None, "warnings": None, "auth": None})

        do_GET = do_POST = do_PUT = handle_any

        def obey(self, orders):
            order = orders.pop(0) if orders else None
            if order == "hang":
                time.sleep(1)
            elif order == "drop":
                self.close_connection = True
                self.connection.close()
            elif order is not None:
                self.send(order, {"errors": ["ordered to fail"]})
            return order is not None

        def send(self, status, body):
            content = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            if status == 307:
                self.send_header("location", "http://127.0.0.1:1/elsewhere")
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_):
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_):
            pass

    with Server(("127.0.0.1", 0), Handler) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        vault.url = f"http{'s' if tls else ''}://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield vault
        finally:
            server.shutdown()
            thread.join()
