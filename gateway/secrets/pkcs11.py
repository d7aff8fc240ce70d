"""Master key in an HSM, through PKCS#11 (OASIS, PKCS #11 Specification 3.1): an AES-256 key that never leaves the HSM.

Version 1 of the key NAME has the label NAME, version n the label ``NAME.n``. A wrapped key is encrypted with AES-GCM,
with the context as additional data: ``pkcs11:v<version>:<base64 of nonce and ciphertext>``. The manufacturer's library
runs in a separate process (`gateway.secrets.pkcs11_process`), which is killed if it does not respond in time.
"""

import json
import os
import select
import subprocess
import sys
import threading
import time
import weakref
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any

from audit.errors import KeyLost, KeyProviderError, KeyRefused
from audit.external_service import Breaker
from audit.keys.master import MasterState, origin_of
from gateway.configuration.settings import Pkcs11

MAX_LINE = 1 << 16
FAILURES, PAUSE_S, LONGEST_S = 2, 1.0, 8.0


class Pkcs11Client:
    """Requests to one key of one token, one at a time. Thread-safe."""

    def __init__(self, settings: Pkcs11) -> None:
        """Raises KeyProviderError if settings are missing or the extra is not installed."""
        if settings.module is None or settings.token is None or settings.pin_file is None:
            raise KeyProviderError(
                "secrets.provider is pkcs11, and what it needs is missing; set module, token and pin_file of"
                " secrets.pkcs11"
            )
        if not _is_installed():
            raise KeyProviderError("PKCS#11 needs python-pkcs11; install the extra: pip install 'domicile[pkcs11]'")
        self.place = f"token {settings.token} of {settings.module}"
        self._settings = settings
        self._pin_file = settings.pin_file
        self._lock = threading.Lock()
        self._breaker = Breaker(failures=FAILURES, pause_s=PAUSE_S, longest_s=LONGEST_S)
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, what: str, **more: object) -> Any:
        """Send a request and return its result.

        Raises:
            KeyRefused: the PIN or the key is not accepted.
            KeyLost: the wrapped key can no longer be opened.
            KeyProviderError: the token does not respond in time, or the key is unsuitable.
        """
        ends = time.monotonic() + self._settings.timeout_s
        if not self._lock.acquire(timeout=self._settings.timeout_s):
            raise KeyProviderError(f"{self.place} is busy; see why it does not answer")
        try:
            if wait := self._breaker.waits():
                raise KeyProviderError(f"{self.place} did not answer, it is asked again in {wait:.0f} s; check the HSM")
            answer = self._answer(json.dumps({"ask": what, **more}).encode(), ends)
        finally:
            self._lock.release()
        if "value" in answer:
            return answer["value"]
        return self._fail(str(answer.get("error")), str(answer.get("says")))

    def close(self) -> None:
        with self._lock:
            self._end()

    def _answer(self, question: bytes, ends: float) -> dict[str, Any]:
        try:
            process = self._started()
            if process.stdin is None or process.stdout is None:
                raise EOFError
            process.stdin.write(question + b"\n")
            answer: dict[str, Any] = json.loads(_line(process.stdout.fileno(), ends))
        except (OSError, ValueError, RecursionError, TimeoutError, EOFError) as error:
            self._end()
            self._breaker.failed()
            why = "did not answer in time" if isinstance(error, TimeoutError) else "ended or said nothing that is known"
            raise KeyProviderError(f"the library of {self.place} {why}; check the HSM and its library") from error
        if answer.get("error") in ("unavailable", "denied"):
            self._end()
        if answer.get("error") == "unavailable":
            self._breaker.failed()
        else:
            self._breaker.succeeded()
        return answer

    def _started(self) -> "subprocess.Popen[bytes]":
        if self._process is None or self._process.poll() is not None:
            self._end()
            command = [sys.executable, "-m", "gateway.secrets.pkcs11_process"]
            pin = _pin(self._pin_file)
            self._process = subprocess.Popen(  # noqa: S603  # a module of this package
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0
            )
            weakref.finalize(self, _kill, self._process)
            settings = {
                "module": str(self._settings.module), "label": self._settings.token, "pin": pin,
                "key": self._settings.key,
            }  # fmt: skip
            if self._process.stdin is not None:
                self._process.stdin.write(json.dumps(settings).encode() + b"\n")
        return self._process

    def _end(self) -> None:
        if self._process is not None:
            _kill(self._process)
            self._process = None

    def _fail(self, kind: str, says: str) -> Any:
        place = f"the key {self._settings.key} in {self.place}"
        if kind == "lost":
            raise KeyLost(f"a wrapped key does not open by {place}: {says}; restore the key in the HSM from its backup")
        if kind in ("missing", "denied"):
            raise KeyRefused(f"{place} cannot be used: {says}; check the token, its PIN and the name of the key")
        if kind == "unsuited":
            raise KeyProviderError(f"{place} is unsuited: {says}; name another module or key in secrets.pkcs11")
        raise KeyProviderError(f"{place} cannot be used now: {says}; check the HSM")


class Pkcs11Master:
    """`audit.keys.master.Master` with a key in an HSM."""

    provider = "pkcs11"

    def __init__(self, client: Pkcs11Client) -> None:
        self._client = client

    @classmethod
    def open(cls, client: Pkcs11Client, *, make: bool = True) -> "Pkcs11Master":
        """Open the key that the settings name, and create it if it is missing and `make` is set.

        Raises KeyProviderError if the key is unsuitable because it can leave the token.
        """
        try:
            client.ask("state")
        except KeyRefused:
            if not make:
                raise
            client.ask("make", version=1)
            client.ask("state")
        return cls(client)

    def wrap(self, context: str, key: bytes) -> bytes:
        found = self._client.ask("wrap", context=context, key=b64encode(key).decode())
        return f"{self.provider}:v{found['version']}:{found['sealed']}".encode()

    def unwrap(self, context: str, wrapped: bytes) -> bytes:
        provider, version = origin_of(wrapped)
        if provider != self.provider:
            raise KeyProviderError(
                f"a key was wrapped by {provider}, not by PKCS#11; set secrets.provider to {provider}"
            )
        sealed = wrapped.rpartition(b":")[2].decode()
        return b64decode(self._client.ask("unwrap", context=context, version=version, sealed=sealed))

    def rewrap(self, context: str, wrapped: bytes) -> bytes:
        return self.wrap(context, self.unwrap(context, wrapped))

    def state(self) -> MasterState:
        return MasterState(self.provider, self._client.place, tuple(self._client.ask("state")))

    def rotate(self) -> int:
        version: int = self._client.ask("make", version=self.state().newest + 1)
        return version

    def retire(self, below: int) -> None:
        if below > self.state().newest:
            raise KeyProviderError(
                f"there is no version {below} of the key that could stay; name a version up to the newest"
            )
        self._client.ask("retire", below=below)


def _is_installed() -> bool:
    from importlib.util import find_spec

    return find_spec("pkcs11") is not None


def _pin(path: Path) -> str:
    """Return the PIN from a file. The file may be a link or belong to another user, as with agents and Kubernetes, but
    must not be accessible to everyone. Raises KeyRefused."""
    try:
        if path.stat().st_mode & 0o007:
            raise KeyRefused(f"others than its owner may touch {path}; run chmod o-rwx on it")
        pin = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise KeyRefused(f"the PIN in {path} cannot be read; let this process read it") from error
    if not pin:
        raise KeyRefused(f"there is no PIN in {path}; write one there")
    return pin


def _line(fd: int, ends: float) -> bytes:
    """Return the next line. Raises TimeoutError, and EOFError at the end."""
    read = b""
    while not read.endswith(b"\n"):
        if not select.select([fd], [], [], max(0.0, ends - time.monotonic()))[0]:
            raise TimeoutError
        piece = os.read(fd, MAX_LINE)
        if not piece or len(read) > MAX_LINE:
            raise EOFError
        read += piece
    return read


def _kill(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
