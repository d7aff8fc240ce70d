"""Signed notes, the keys that sign them, and checkpoints (C2SP signed-note, tlog-checkpoint, tlog-cosignature)."""

from __future__ import annotations

import base64
import hashlib
import re

from audit.pack_verifier.ed25519 import ed25519
from audit.pack_verifier.fault import Broken

MAX_NOTE = 32 << 20  # characters: a certificate names every record that it covers
MAX_NOTE_LINES, MAX_SIGNATURES = 100, 100


def parse_key(text: str) -> tuple[str, bytes]:
    """Name and public key of a verifier key, ``name+key id+base64``."""
    parts = text.strip().split("+", 2)
    try:
        raw = base64.b64decode(parts[2], validate=True)
    except (IndexError, ValueError):
        raise Broken("that is not a verifier key: it reads name+key id+base64") from None
    if raw[:1] != b"\x01" or len(raw) != 33 or parts[1] != key_id(parts[0], raw[1:]).hex():
        raise Broken("that is not an Ed25519 verifier key, or its key id is not that of the key")
    return parts[0], raw[1:]


def parse_witness(text: str) -> tuple[str, bytes, bytes]:
    """Name, public key and key id of a witness's key (C2SP tlog-cosignature)."""
    parts = text.strip().split("+", 2)
    raw = base64.b64decode(parts[2], validate=True) if len(parts) == 3 else b""
    if raw[:1] != b"\x04" or len(raw) != 33:
        raise ValueError("that is not the key of a witness: it reads name+key id+base64")
    return parts[0], raw[1:], hashlib.sha256(parts[0].encode() + b"\n" + raw).digest()[:4]


def key_id(name: str, public: bytes) -> bytes:
    return hashlib.sha256(name.encode() + b"\n\x01" + public).digest()[:4]


def open_note(note: str, name: str, public: bytes) -> str:
    """The text of a note that `public`, called `name`, signed."""
    if len(note) > MAX_NOTE or note.count("\n") > MAX_NOTE_LINES + MAX_SIGNATURES:
        raise Broken("it is too long for a note")
    body, blank, block = note.rpartition("\n\n")
    if block.count("\n") > MAX_SIGNATURES:
        raise Broken("it has too many signatures")
    if not blank or not block.endswith("\n"):
        raise Broken("it has no signatures")
    text, wanted, signed = body + "\n", key_id(name, public), False
    for line in block[:-1].split("\n"):
        match = re.fullmatch(r"\u2014 (\S+) ([A-Za-z0-9+/]+=*)", line)
        if match is None:
            raise Broken("a signature line is malformed")
        try:
            signature = base64.b64decode(match[2], validate=True)
        except ValueError:
            raise Broken("a signature line is malformed") from None
        if match[1] == name and signature[:4] == wanted:
            if not ed25519(public, text.encode(), signature[4:]):
                raise Broken("the signature of " + name + " is wrong")
            signed = True
    if not signed:
        raise Broken("the key of " + name + " did not sign it")
    return text


def parse_checkpoint(text: str) -> tuple[str, int, bytes]:
    """Origin, size and root."""
    lines = text.split("\n")
    if len(lines) < 4 or not re.fullmatch(r"0|[1-9][0-9]{0,18}", lines[1]):
        raise Broken("it is not a checkpoint")
    try:
        root = base64.b64decode(lines[2], validate=True)
    except ValueError:
        raise Broken("the root of the checkpoint is not base64") from None
    if len(root) != 32:
        raise Broken("the root of the checkpoint is not 32 bytes")
    return lines[0], int(lines[1]), root
