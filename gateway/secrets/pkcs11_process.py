"""Process that accesses an HSM: ``python -m gateway.secrets.pkcs11_process``, started by `gateway.secrets.pkcs11`.

The manufacturer's library runs here, so that a hanging library is killed with this process and a crash affects nothing
else. The protocol is one JSON object per line: first the settings, then requests. Responses are ``{"value": …}`` or
``{"error": kind, "says": …}``, where kind is one of lost, missing, denied, unsuited, unavailable.
"""

import json
import os
import re
import sys
import threading
import time
from base64 import b64decode, b64encode
from collections.abc import Callable
from typing import Any

import pkcs11
from pkcs11 import Attribute, GCMParams, KeyType, Mechanism, ObjectClass

NONCE_SIZE = 12
TAG_BITS = 128
PROBE = bytes(32)


class Failure(Exception):
    """A failed request. `kind`: see the module's docstring."""

    def __init__(self, kind: str, says: str) -> None:
        super().__init__(says)
        self.kind, self.says = kind, says


class Token:
    """A session on a token. Keys are looked up at each use, because they may have been deleted in between."""

    def __init__(self, module: str, label: str, pin: str, key: str) -> None:
        self._key = key
        self._pin = pin
        self._versions = re.compile(re.escape(key) + r"(?:\.([1-9][0-9]{0,8}))?")
        try:
            self._token = pkcs11.lib(module).get_token(token_label=label)
        except (pkcs11.NoSuchToken, pkcs11.MultipleTokensReturned) as error:
            raise Failure("missing", f"the library shows not exactly one token {label}") from error
        except (OSError, RuntimeError) as error:
            raise Failure("unsuited", "the library cannot be loaded") from error
        self._session = self._open()

    def versions(self) -> dict[int, Any]:
        """Return the secret keys of the name by version: NAME is version 1, NAME.2 is version 2."""
        found = {}
        for one in self._session.get_objects({Attribute.CLASS: ObjectClass.SECRET_KEY}):
            match = self._versions.fullmatch(one[Attribute.LABEL] or "")
            if match is not None:
                found[int(match[1] or 1)] = one
        return found

    def state(self) -> list[int]:
        found = self.versions()
        for key in found.values():
            if key[Attribute.EXTRACTABLE] or not key[Attribute.SENSITIVE] or key.key_type is not KeyType.AES:
                raise Failure("unsuited", "it is not an AES key that is sensitive and not extractable")
        if not found:
            raise Failure("missing", "there is no key of that name")
        return sorted(found)

    def make(self, version: int) -> int:
        """Create this version of the key unless it exists. Its value is generated in the token and never leaves it."""
        self._writable()
        if version not in self.versions():
            template = {Attribute.EXTRACTABLE: False, Attribute.SENSITIVE: True}
            name = self._key if version == 1 else f"{self._key}.{version}"
            self._session.generate_key(KeyType.AES, 256, label=name, store=True, template=template)
        return version

    def retire(self, below: int) -> int:
        self._writable()
        old = [key for version, key in self.versions().items() if version < below]
        for key in old:
            key.destroy()
        return len(old)

    def wrap(self, context: str, key: str) -> dict[str, object]:
        found = self.versions()
        if not found:
            raise Failure("missing", "there is no key of that name")
        nonce = os.urandom(NONCE_SIZE)
        sealed = _sealed(found[max(found)], nonce, context.encode(), b64decode(key))
        return {"version": max(found), "sealed": b64encode(nonce + sealed).decode()}

    def unwrap(self, context: str, version: int, sealed: str) -> str:
        found = self.versions()
        if not found:
            raise Failure("missing", "there is no key of that name")
        if version not in found:
            raise Failure("lost", f"version {version} of the key is gone")
        raw = b64decode(sealed)
        try:
            opened = _opened(found[version], raw[:NONCE_SIZE], context.encode(), raw[NONCE_SIZE:])
        except pkcs11.PKCS11Error as error:
            if self._works(found[version]):  # libraries differ in the error for a wrong tag; SoftHSM reports "general"
                raise Failure("lost", "it does not open under this key") from error
            raise
        return b64encode(opened).decode()

    def _works(self, key: Any) -> bool:
        try:
            nonce = os.urandom(NONCE_SIZE)
            return _opened(key, nonce, b"", _sealed(key, nonce, b"", PROBE)) == PROBE
        except pkcs11.PKCS11Error:
            return False

    def _writable(self) -> None:
        self._session.close()
        self._session = self._open(rw=True)

    def _open(self, *, rw: bool = False) -> Any:
        try:
            return self._token.open(rw=rw, user_pin=self._pin)
        except (pkcs11.PinIncorrect, pkcs11.PinInvalid, pkcs11.PinExpired, pkcs11.PinLenRange) as error:
            raise Failure("denied", "the PIN is not accepted") from error
        except pkcs11.PinLocked as error:
            raise Failure("denied", "the PIN is locked") from error


def _sealed(key: Any, nonce: bytes, context: bytes, plain: bytes) -> bytes:
    params = GCMParams(nonce, aad=context, tag_bits=TAG_BITS)
    return bytes(key.encrypt(plain, mechanism=Mechanism.AES_GCM, mechanism_param=params))


def _opened(key: Any, nonce: bytes, context: bytes, sealed: bytes) -> bytes:
    params = GCMParams(nonce, aad=context, tag_bits=TAG_BITS)
    return bytes(key.decrypt(sealed, mechanism=Mechanism.AES_GCM, mechanism_param=params))


def _end_with(parent: int) -> None:
    """Exit when the parent process ends, even if the library hangs: it runs without the GIL."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def _answered(ask: Callable[[], object]) -> tuple[dict[str, object], bool]:
    """Return the response, and whether the session is still usable."""
    try:
        return {"value": ask()}, True
    except Failure as failure:
        return {"error": failure.kind, "says": failure.says}, failure.kind in ("lost", "missing", "unsuited")
    except pkcs11.PKCS11Error as error:
        return {"error": "unavailable", "says": type(error).__name__}, False


def main() -> None:
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    settings = json.loads(sys.stdin.readline())
    token: Token | None = None
    for line in sys.stdin:
        question = json.loads(line)
        name = question.pop("ask")

        def ask(name: str = name, question: dict[str, Any] = question) -> object:
            nonlocal token
            token = token or Token(**settings)
            asked: Callable[..., object] = getattr(token, name)
            return asked(**question)

        answer, goes_on = _answered(ask)
        print(json.dumps(answer), flush=True)  # part of the protocol
        if not goes_on:
            return


if __name__ == "__main__":
    main()
