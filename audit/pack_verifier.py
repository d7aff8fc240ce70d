#!/usr/bin/env python3
"""Check an evidence pack, offline: python3 -I verify.py FOLDER_OR_ZIP [--key VKEY] [--checkpoint FILE] [--json]

Needs Python 3.9 or newer and nothing else. Believes nothing in the pack but what the log's key signed; give that key
(--key), and a checkpoint that you kept from earlier (--checkpoint), from a place of your own. Exit code 0 if all
holds, 1 if anything does not, 2 if the pack cannot be read. Formats are described in schema.json and README.html.

Sources: RFC 6962 (tree), RFC 8785 (canonical JSON), RFC 8032 (Ed25519), RFC 3161 (timestamps), C2SP signed-note,
tlog-checkpoint and tlog-cosignature.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import hmac
import json
import re
import sys
import time
import zipfile
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, BinaryIO

MAX_FINDINGS = 20  # of one kind; the rest are counted
MAX_LINE = 1 << 20
OPENS, WITHIN, CLOSES = "inference.accepted", "routing.decision", ("inference.completed", "inference.aborted")
DECIDED = (OPENS, "inference.denied")
ACTIVATED = "admin.policy.activated"
OPERATOR = "_operator"  # the scope of the policy above all tenants; the tenant's own is "", others are projects
EARLY, LATE = timedelta(seconds=60), timedelta(seconds=300)  # clocks of nodes; a call is decided before it is recorded
NOT_LISTED = {"manifest.json", "manifest.sig"}


class Broken(Exception):
    """A sentence that says what does not hold."""


# --- Ed25519, RFC 8032 section 5.1.7 ---------------------------------------------------------------------------------

P = 2**255 - 19
L = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, P - 2, P) % P
ROOT = pow(2, (P - 1) // 4, P)


def add(a: Any, b: Any) -> Any:
    x = (a[1] - a[0]) * (b[1] - b[0]) % P
    y = (a[1] + a[0]) * (b[1] + b[0]) % P
    t, z = 2 * a[3] * b[3] * D % P, 2 * a[2] * b[2] % P
    e, f, g, h = y - x, z - t, z + t, y + x
    return e * f % P, g * h % P, f * g % P, e * h % P


def multiply(scalar: int, point: Any) -> Any:
    total = (0, 1, 1, 0)
    while scalar:
        if scalar & 1:
            total = add(total, point)
        point = add(point, point)
        scalar >>= 1
    return total


def decompress(data: bytes) -> Any:
    """The point, None if the bytes are the encoding of none."""
    encoded = int.from_bytes(data, "little")
    sign, y = encoded >> 255, encoded & (1 << 255) - 1
    if y >= P:
        return None
    square = (y * y - 1) * pow(D * y * y + 1, P - 2, P) % P
    x = pow(square, (P + 3) // 8, P)
    if (x * x - square) % P:
        x = x * ROOT % P
    if (x * x - square) % P or (x == 0 and sign):
        return None
    if x & 1 != sign:
        x = P - x
    return x, y, 1, x * y % P


BASE = decompress((4 * pow(5, P - 2, P) % P).to_bytes(32, "little"))


def ed25519(public: bytes, message: bytes, signature: bytes) -> bool:
    """Whether `signature` (64 bytes) is that of `message` under `public` (32 bytes)."""
    if len(public) != 32 or len(signature) != 64:
        return False
    key, point = decompress(public), decompress(signature[:32])
    scalar = int.from_bytes(signature[32:], "little")
    if key is None or point is None or scalar >= L:
        return False
    digest = int.from_bytes(hashlib.sha512(signature[:32] + public + message).digest(), "little") % L
    left, right = multiply(scalar, BASE), add(point, multiply(digest, key))
    same_x = (left[0] * right[2] - right[0] * left[2]) % P == 0
    same_y = (left[1] * right[2] - right[1] * left[2]) % P == 0
    return bool(same_x and same_y)


# --- signed notes ----------------------------------------------------------------------------------------------------


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
    body, blank, block = note.rpartition("\n\n")
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


# --- the tree --------------------------------------------------------------------------------------------------------


def leaf_hash(entry: bytes) -> bytes:
    return hashlib.sha256(b"\x00" + entry).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\x01" + left + right).digest()


class Tree:
    """The perfect subtrees of what was appended, largest first."""

    def __init__(self) -> None:
        self.size = 0
        self.stack: list[tuple[int, bytes]] = []

    def append(self, subtree: bytes, height: int = 0) -> None:
        self.size += 1 << height
        while self.stack and self.stack[-1][0] == height:
            subtree, height = node_hash(self.stack.pop()[1], subtree), height + 1
        self.stack.append((height, subtree))

    def root(self) -> bytes:
        if not self.stack:
            return hashlib.sha256(b"").digest()
        root = self.stack[-1][1]
        for _, left in reversed(self.stack[:-1]):
            root = node_hash(left, root)
        return root


def aligned(start: int, end: int) -> Iterator[int]:
    """Heights of the perfect subtrees that make up the leaves from `start` to `end`."""
    while start < end:
        height = (end - start).bit_length() - 1
        if start:
            height = min(height, (start & -start).bit_length() - 1)
        yield height
        start += 1 << height


def root_from_inclusion(leaf: bytes, index: int, size: int, proof: list[bytes]) -> bytes:
    """RFC 9162 section 2.1.3.2."""
    if not 0 <= index < size:
        raise Broken("its record is not under the checkpoint")
    node, last, root = index, size - 1, leaf
    for sibling in proof:
        if last == 0:
            raise Broken("its proof is too long")
        if node & 1 or node == last:
            root = node_hash(sibling, root)
            while not node & 1 and node:
                node, last = node >> 1, last >> 1
        else:
            root = node_hash(root, sibling)
        node, last = node >> 1, last >> 1
    if last:
        raise Broken("its proof is too short")
    return root


# --- reading the pack ------------------------------------------------------------------------------------------------


def no_float(text: str) -> Any:
    raise ValueError("a record holds whole numbers only, not " + text)


def canonical(data: bytes) -> Any:
    """The value of `data`, which must be in canonical form (names in ASCII, whole numbers only)."""
    try:
        value = json.loads(data, parse_float=no_float, parse_constant=no_float)
        again = json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode()
    except (ValueError, RecursionError):
        raise Broken("it is not JSON of this format") from None
    if again != data:
        raise Broken("it is not in canonical form")
    return value


# --- timestamps, RFC 3161 --------------------------------------------------------------------------------------------

HASHES = {bytes.fromhex("608648016503040201"): "sha256", bytes.fromhex("608648016503040203"): "sha512"}
TST_INFO = bytes.fromhex("2a864886f70d0109100104")  # id-ct-TSTInfo


def der(data: bytes, at: int = 0) -> tuple[int, bytes, int]:
    """Tag, content and end of the DER value at `at`."""
    if at + 2 > len(data):
        raise Broken("the timestamp is cut short")
    tag, size, at = data[at], data[at + 1], at + 2
    if size & 0x80:
        count = size & 0x7F
        if not 1 <= count <= 4:
            raise Broken("the timestamp is not DER")
        size, at = int.from_bytes(data[at : at + count], "big"), at + count
    if at + size > len(data):
        raise Broken("the timestamp is cut short")
    return tag, data[at : at + size], at + size


def values(data: bytes) -> list[tuple[int, bytes]]:
    found, at = [], 0
    while at < len(data):
        tag, content, at = der(data, at)
        found.append((tag, content))
    return found


def stamped(token: bytes, message: bytes) -> str:
    """The time in a TimeStampResp or token over `message`."""
    info = find_info(token, 0)
    if info is None:
        raise Broken("the timestamp has no TSTInfo")
    try:
        parts = values(values(info)[0][1])
        imprint = values(parts[2][1])
        name = HASHES.get(values(imprint[0][1])[0][1])
        when = next(content for tag, content in parts if tag == 0x18).decode()
        digest = imprint[1][1]
    except (IndexError, StopIteration, UnicodeDecodeError):
        raise Broken("the timestamp is not of RFC 3161") from None
    if name is None or hashlib.new(name, message).digest() != digest:
        raise Broken("the timestamp is over something else")
    return when[:4] + "-" + when[4:6] + "-" + when[6:8] + "T" + when[8:10] + ":" + when[10:12] + ":" + when[12:]


def find_info(data: bytes, depth: int) -> bytes | None:
    """The content of the EncapsulatedContentInfo of type id-ct-TSTInfo, wherever it lies."""
    if depth > 12:
        return None
    parts = values(data)
    for at, (tag, content) in enumerate(parts):
        if tag == 6 and content == TST_INFO and at + 1 < len(parts) and parts[at + 1][0] == 0xA0:
            return der(parts[at + 1][1])[1]
        if tag & 0x20 and (found := find_info(content, depth + 1)) is not None:
            return found
    return None


class Pack:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.zip = None if path.is_dir() else zipfile.ZipFile(path)

    def names(self) -> list[str]:
        if self.zip is None:
            files = (file for file in self.path.rglob("*") if file.is_file())
            return [file.relative_to(self.path).as_posix() for file in files]
        return [name for name in self.zip.namelist() if not name.endswith("/")]

    def open(self, name: str) -> BinaryIO:
        try:
            if self.zip is None:
                return (self.path / name).open("rb")
            return self.zip.open(name)  # type: ignore[return-value]
        except (KeyError, OSError):
            raise Broken("the file " + name + " is missing") from None

    def read(self, name: str) -> bytes:
        with self.open(name) as file:
            return file.read()


class Version:
    """One version of a policy, as the history has it."""

    def __init__(self, said: dict[str, Any]) -> None:
        self.said = said
        self.scope, self.number, self.sha256 = str(said["scope"]), int(said["number"]), str(said["sha256"])
        self.said_since, self.said_until = str(said["activated_at"]), str(said["in_force_until"])
        self.since = moment(self.said_since)
        self.until: datetime | None = None


def version_name(said: dict[str, Any]) -> str:
    scope = str(said["scope"])
    whose = {"": "the tenant's policy", OPERATOR: "the operator's policy"}.get(scope, "the policy of project " + scope)
    return "version " + str(said["number"]) + " of " + whose


def moment(text: str) -> datetime:
    """A time of a record, in UTC: 2026-03-01T09:30:00.000Z."""
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%fZ")


def stamp(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds") + "Z"


class Check:
    """One run over one pack. `findings` are what does not hold, `notes` what a reader should know."""

    def __init__(self, pack: Pack, key: str | None, held: list[str]) -> None:
        self.pack, self.given, self.held = pack, key, held
        self.findings: list[dict[str, Any]] = []
        self.counts: dict[str, int] = {}
        self.notes: list[str] = []
        self.states: dict[str, int] = {}
        self.manifest: dict[str, Any] = {}
        self.records = 0
        self.wanted: set[int] = set()
        self.roots: dict[int, bytes] = {}
        self.witnesses: list[tuple[str, bytes, bytes]] = []
        self.trusted: list[bytes] = []

    def fault(self, check: str, says: str, seq: int | None = None) -> None:
        self.counts[check] = self.counts.get(check, 0) + 1
        if self.counts[check] <= MAX_FINDINGS:
            self.findings.append({"check": check, "says": says, "seq": seq})

    def run(self) -> None:
        """Without a manifest there is nothing to check; otherwise each step is taken, whatever the others found."""
        self.read_manifest()
        for step in (
            self.check_files,
            self.check_checkpoint,
            self.read_certificates,
            self.read_fields,
            self.read_policies,
            self.check_events,
            self.check_activations,
            self.check_certificates,
            self.check_outside,
        ):
            try:
                step()
            except Broken as error:
                self.fault("pack", str(error))

    # --- what was signed ---

    def read_manifest(self) -> None:
        data = self.pack.read("manifest.json")
        try:
            self.manifest = json.loads(data)
            self.origin, self.tenant = str(self.manifest["origin"]), str(self.manifest["tenant"])
            self.first, self.end = int(self.manifest["first"]), int(self.manifest["end"])
            self.files = dict(self.manifest["files"])
            name, self.public = parse_key(str(self.manifest["key"]))
        except (ValueError, KeyError, TypeError):
            raise Broken("manifest.json is not a manifest of this format") from None
        if self.given is None:
            self.notes.append("The key was taken from the pack itself. Compare it with the one you hold: " + name)
        else:
            given, public = parse_key(self.given)
            if public != self.public and self.public not in self.succession(public):
                self.fault(
                    "key", "the pack was made under another key than the one you gave, and no succession leads to it"
                )
            if given not in (self.origin, self.origin.rpartition("/")[0]):
                self.fault("key", "the key you gave is of " + given + ", the pack of " + self.origin)
            self.public = public
        if self.origin.rpartition("/")[2] != self.tenant:
            self.fault("manifest", "the manifest names tenant " + self.tenant + ", its tree is " + self.origin)
        self.trusted = self.succession(self.public)
        try:
            text = self.open_signed(self.pack.read("manifest.sig").decode(), self.origin)
            if text != self.origin + " evidence pack\n" + hashlib.sha256(data).hexdigest() + "\n":
                raise Broken("it was signed for another manifest")
        except (Broken, UnicodeDecodeError) as error:
            self.fault("manifest", "the signature of the manifest does not hold: " + str(error))

    def open_signed(self, note: str, name: str) -> str:
        """The text of a note under the key we start from, or one of its succession."""
        told = None
        for public in self.trusted:
            try:
                return open_note(note, name, public)
            except Broken as error:
                told = told or error
        raise told or Broken("no key is trusted")

    def succession(self, start: bytes) -> list[bytes]:
        """The keys that one follows to, link by link: each note names an old and a new key and is signed by both.

        Either may be the one we hold: the old vouches for what comes after it, the new for what came before.
        """
        known, links = [start], []
        log = self.origin.rpartition("/")[0]
        for name in sorted(name for name in self.pack.names() if name.startswith("proofs/keys/")):
            try:
                note = self.pack.read(name).decode()
                head, old_text, new_text = note.split("\n\n")[0].split("\n")[:3]
                (old_name, old), (new_name, new) = parse_key(old_text), parse_key(new_text)
                if head != log + " key succession" or (old_name, new_name) != (log, log):
                    raise Broken("it is of another log")
                if open_note(note, log, old) != open_note(note, log, new):
                    raise Broken("its signatures differ")
                links.append((old, new))
            except (Broken, ValueError) as error:
                self.fault("key", "the succession " + name + " does not hold: " + str(error))
        grown = True
        while grown:
            fresh = [b for a, b in links + [(b, a) for a, b in links] if a in known and b not in known]
            known += fresh[:1]
            grown = bool(fresh)
        return known

    def check_files(self) -> None:
        names = self.pack.names()
        for name in sorted({name for name in names if names.count(name) > 1}):
            self.fault("files", "the file " + name + " is in the pack more than once")
        for name in sorted(set(self.files) - set(names)):
            self.fault("files", "the file " + name + " is missing")
        for name in sorted(set(names) - set(self.files) - NOT_LISTED):
            self.fault("files", "the file " + name + " is not in the manifest")
        for name in sorted(set(self.files) & set(names)):
            digest = hashlib.sha256()
            with self.pack.open(name) as file:
                for block in iter(lambda: file.read(1 << 20), b""):
                    digest.update(block)
            if digest.hexdigest() != self.files[name]:
                self.fault("files", "the file " + name + " was changed")

    def check_checkpoint(self) -> None:
        self.size, self.root = -1, b""
        try:
            text = self.open_signed(self.pack.read("checkpoint").decode(), self.origin)
            origin, self.size, self.root = parse_checkpoint(text)
            if origin != self.origin:
                raise Broken("it is of " + origin + ", not of " + self.origin)
        except (Broken, UnicodeDecodeError) as error:
            self.fault("checkpoint", "the checkpoint does not hold: " + str(error))

    # --- records ---

    def check_events(self) -> None:
        try:
            proof = json.loads(self.pack.read("proofs/range.json"))
            left = [bytes.fromhex(node) for node in proof["left"]]
            right = [bytes.fromhex(node) for node in proof["right"]]
        except (ValueError, KeyError, TypeError):
            raise Broken("proofs/range.json is not a proof of this format") from None
        logged = self.pack.read("proofs/leaves.bin")
        self.wanted = self.anchored_sizes()
        tree, promised = Tree(), self.held_checkpoints()
        heights = list(aligned(0, self.first))
        if len(heights) == len(left):
            for at, height in enumerate(heights):
                tree.append(left[at], height)
        else:
            self.fault("root", "the proof of what came before the first record has the wrong length")
        open_requests: dict[str, int] = {}
        self.check_promises(tree, promised)
        with self.pack.open("events.jsonl") as file:
            for line in iter(lambda: file.readline(MAX_LINE), b""):
                seq = self.first + self.records
                self.records += 1
                tree.append(self.check_event(line.rstrip(b"\n"), seq, logged, open_requests))
                self.check_promises(tree, promised)
        for seq in range(self.first + self.records, self.end):
            self.fault("sequence", "record " + str(seq) + " is missing at the end", seq)
        if self.records > self.end - self.first:
            self.fault("sequence", "there are more records than the manifest says")
        self.check_root(tree, right)
        for size in promised:
            self.fault(
                "held",
                "the checkpoint you hold of size " + str(size) + " lies outside this pack: it proves "
                "records " + str(self.first) + " to " + str(self.end),
            )
        if open_requests:
            self.notes.append(str(len(open_requests)) + " calls had no outcome yet at the end of the period")
        self.field_leftovers()

    def check_event(self, line: bytes, seq: int, logged: bytes, open_requests: dict[str, int]) -> bytes:
        """The hash that the tree has for it."""
        at, digest = (seq - self.first) * 32, leaf_hash(line)
        if not line:
            return self.check_expired(seq, logged[at : at + 32])
        if logged[at : at + 32] != digest:
            place = logged.find(digest)
            if place >= 0 and place % 32 == 0:
                was = self.first + place // 32
                self.fault("sequence", "here stands what was logged as record " + str(was), seq)
            else:
                self.fault("hash", "it is not what was logged: it was changed, or put in later", seq)
        try:
            event = canonical(line)
            if not isinstance(event, dict) or event.get("v") != 1 or not isinstance(event.get("type"), str):
                raise Broken("it is not a record of this format")
        except Broken as error:
            self.fault("form", str(error), seq)
            return digest
        if event.get("tenant") != self.tenant:
            self.fault("tenant", "it belongs to tenant " + str(event.get("tenant")), seq)
        self.check_pairing(event, seq, open_requests)
        self.check_fields(event, seq)
        self.check_policy(event, seq)
        if isinstance(digest_of := event.get("certificate_sha256"), str):
            self.announced[digest_of] = seq
        return digest

    def check_expired(self, seq: int, digest: bytes) -> bytes:
        """A record whose content retention deleted: its hash stands for it, and a certificate must say so."""
        said = self.fields.pop((seq, "record"), {})
        try:
            if said.get("state") != "erased":
                raise Broken("its content is missing, and no certificate says that it expired")
            self.check_erased(str(said.get("certificate")), seq, "record")
            self.states["expired"] = self.states.get("expired", 0) + 1
        except Broken as error:
            self.fault("expired", str(error), seq)
        return digest

    def check_pairing(self, event: dict[str, Any], seq: int, open_requests: dict[str, int]) -> None:
        kind, request = event["type"], str(event.get("request_id"))
        if kind == OPENS:
            if request in open_requests:
                self.fault("pairing", "request " + request + " is accepted again while it is open", seq)
            open_requests[request] = seq
        elif kind == WITHIN or kind in CLOSES:
            if request not in open_requests and self.first == 0:
                self.fault("pairing", kind + " of request " + request + ", which was never accepted", seq)
            if kind in CLOSES:
                open_requests.pop(request, None)

    def check_root(self, tree: Tree, right: list[bytes]) -> None:
        heights = list(aligned(self.end, self.size)) if self.size >= self.end else []
        if len(heights) != len(right) or self.size < self.end:
            self.fault("root", "the proof of what came after the last record does not fit the checkpoint")
            return
        for at, height in enumerate(heights):
            tree.append(right[at], height)
        if tree.root() != self.root:
            self.fault(
                "root", "the records do not lead to the signed checkpoint: something among them is not what was signed"
            )

    def anchored_sizes(self) -> set[int]:
        """Where the walk must remember the root."""
        if "proofs/anchor.json" not in self.files:
            return set()
        try:
            return {int(str(json.loads(self.pack.read("proofs/anchor.json"))["checkpoint"]).split("\n")[1])}
        except (Broken, ValueError, KeyError, TypeError, IndexError):
            return set()

    def held_checkpoints(self) -> dict[int, bytes]:
        promised: dict[int, bytes] = {}
        for note in self.held:
            try:
                origin, size, root = parse_checkpoint(self.open_signed(note, self.origin))
                if origin != self.origin:
                    raise Broken("it is of " + origin)
            except Broken as error:
                self.fault("held", "the checkpoint you hold does not hold: " + str(error))
                continue
            if promised.setdefault(size, root) != root:
                self.fault("held", "you hold two different checkpoints of size " + str(size) + ": the log was forked")
        return promised

    def check_promises(self, tree: Tree, promised: dict[int, bytes]) -> None:
        if tree.size in self.wanted:
            self.roots[tree.size] = tree.root()
        if tree.size in promised and promised.pop(tree.size) != tree.root():
            self.fault(
                "held",
                "the log is not a continuation of the checkpoint you hold of size "
                + str(tree.size)
                + ": history was rewritten",
            )

    # --- private values ---

    def read_fields(self) -> None:
        """States by record and field, from fields.jsonl."""
        self.fields: dict[tuple[int, str], dict[str, Any]] = {}
        with self.pack.open("fields.jsonl") as file:
            for line in file:
                try:
                    said = json.loads(line)
                    self.fields[int(said["seq"]), str(said["field"])] = said
                except (ValueError, KeyError, TypeError):
                    self.fault("field", "a line of fields.jsonl is not of this format")

    def check_fields(self, event: dict[str, Any], seq: int) -> None:
        commits = event.get("commits", {})
        for field in sorted(commits):
            said = self.fields.pop((seq, field), {"state": "missing"})
            state = str(said.get("state"))
            try:
                if state == "disclosed":
                    message = "v1|" + self.tenant + "|" + str(event.get("event_id")) + "|" + field + "|"
                    data = message.encode() + str(said.get("jcs")).encode()
                    made = hmac.new(bytes.fromhex(str(said.get("salt"))), data, "sha256").hexdigest()
                    if not hmac.compare_digest(made, str(commits[field])):
                        raise Broken("the value shown for " + field + " is not the one that was recorded")
                elif state == "erased":
                    self.check_erased(str(said.get("certificate")), seq, field)
                elif state != "withheld":
                    raise Broken("the value of " + field + " is missing, and no certificate says that it was deleted")
            except (Broken, ValueError) as error:
                state = "wrong"
                self.fault("field", str(error), seq)
            self.states[state] = self.states.get(state, 0) + 1

    def check_erased(self, name: str, seq: int, field: str) -> None:
        if name not in self.certificates:
            raise Broken("the value of " + field + " is said to be erased, but certificate " + name + " is not here")
        covered = self.certificates[name]["covered"].get(field, [])
        if not any(first <= seq <= last for first, last in covered):
            raise Broken("certificate " + name + " does not cover " + field)

    def field_leftovers(self) -> None:
        for seq, field in self.fields:
            self.fault("field", "fields.jsonl speaks of " + field + ", to which no record commits", seq)

    def read_certificates(self) -> None:
        self.certificates: dict[str, dict[str, Any]] = {}
        self.digests: dict[str, str] = {}
        self.announced: dict[str, int] = {}
        for name in sorted(name for name in self.pack.names() if name.startswith("certificates/")):
            try:
                text = self.open_signed(self.pack.read(name).decode(), self.origin)
                first, _, body = text[:-1].partition("\n")
                certificate = canonical(body.encode())
                if first != self.origin + " certificate" or certificate["tenant"] != self.tenant:
                    raise Broken("it is not of this tenant")
                self.certificates[str(certificate["id"])] = certificate
                self.digests[str(certificate["id"])] = hashlib.sha256(body.encode()).hexdigest()
            except (Broken, ValueError, KeyError, TypeError) as error:
                self.fault("certificate", "the certificate " + name + " does not hold: " + str(error))

    def check_certificates(self) -> None:
        """Each must have been announced by a record, in this pack or proven to be under its checkpoint."""
        elsewhere: dict[str, Any] = {}
        try:
            elsewhere = json.loads(self.pack.read("proofs/certificates.json"))
        except ValueError:
            self.fault("certificate", "proofs/certificates.json is not of this format")
        for name in self.certificates:
            seq = self.announced.get(self.digests[name])
            try:
                if seq is None:
                    said = elsewhere.get(name, {})
                    leaf, seq = str(said["leaf"]).encode(), int(said["seq"])
                    proof = [bytes.fromhex(node) for node in said["proof"]]
                    if root_from_inclusion(leaf_hash(leaf), seq, self.size, proof) != self.root:
                        raise Broken("its record is not under the checkpoint")
                    if canonical(leaf).get("certificate_sha256") != self.digests[name]:
                        raise Broken("its record announces another certificate")
                spans = [span for field in self.certificates[name]["covered"].values() for span in field]
                if any(last >= seq for _, last in spans):
                    raise Broken("it covers records that were made after it")
            except (KeyError, TypeError, ValueError):
                self.fault("certificate", "no record announces certificate " + name)
            except Broken as error:
                self.fault("certificate", "certificate " + name + " does not hold: " + str(error))

    # --- policies ---

    def read_policies(self) -> None:
        """Each version with its time, and what versions made together, by the hash that calls name it with."""
        self.versions: dict[tuple[str, int], Version] = {}
        self.rulings: dict[str, list[dict[str, Any]]] = {}
        self.spans: dict[tuple[str, str], list[tuple[str, str]]] = {}
        self.activations: list[tuple[int, dict[str, Any]]] = []
        self.unproven: dict[str, dict[str, Any]] = {}
        for one in self.listed("policy_history.json"):
            if "text" in one:  # otherwise it is a record of a version whose text nobody gave
                self.take_version(one)
        self.check_order()
        for one in self.listed("policies_in_force.json"):
            try:
                name = str(one["policy_hash"])
                parts = {str(part["scope"]): int(part["number"]) for part in one["made_of"]}
                if one["canonical"] == "":
                    self.unproven[name] = one
                elif hashlib.sha256(str(one["canonical"]).encode()).hexdigest() != name:
                    raise Broken("the text of policy " + name + " is not what its hash is of")
                for part in one["made_of"]:
                    known = self.versions.get((str(part["scope"]), int(part["number"])))
                    if known is None or known.sha256 != part["sha256"]:
                        raise Broken(
                            "policy " + name + " is made of " + version_name(part) + ", which is not in the history"
                        )
                if "" not in parts or len(parts) != len(one["made_of"]) or len(set(parts) - {OPERATOR, ""}) > 1:
                    raise Broken("policy " + name + " is not made of a tenant's and at most a project's version")
                self.rulings.setdefault(name, []).append({**one, "parts": parts})
            except Broken as error:
                self.fault("policy", str(error))
            except (ValueError, KeyError, TypeError):
                self.fault("policy", "policies_in_force.json is not of this format")

    def listed(self, name: str) -> list[dict[str, Any]]:
        try:
            found = json.loads(self.pack.read(name))
            if isinstance(found, list) and all(isinstance(one, dict) for one in found):
                return found
            self.fault("policy", name + " is not of this format")
        except ValueError:
            self.fault("policy", name + " is not of this format")
        except Broken as error:
            self.fault("policy", str(error))
        return []

    def take_version(self, one: dict[str, Any]) -> None:
        try:
            version = Version(one)
            if hashlib.sha256(str(one["text"]).encode()).hexdigest() != version.sha256:
                self.fault("policy", "the text of " + version_name(one) + " is not the one that was activated")
            if self.versions.setdefault((version.scope, version.number), version) is not version:
                self.fault("policy", version_name(one) + " is in the history twice")
        except (ValueError, KeyError, TypeError):
            self.fault("policy", "policy_history.json is not of this format")

    def check_order(self) -> None:
        """Each version of a scope was in force until the next."""
        for (scope, number), version in self.versions.items():
            later = [one for one in self.versions.values() if one.scope == scope and one.number > number]
            after = min(later, key=lambda one: one.number, default=None)
            if version.said_until != (after.said_since if after else ""):
                self.fault("policy", version_name(version.said) + " ends at another time than the next one begins")
            if after is not None and after.since < version.since:
                self.fault("policy", version_name(after.said) + " begins before the one that it replaced")
            version.until = after.since if after else None

    def check_policy(self, event: dict[str, Any], seq: int) -> None:
        """That what decided the call is in the history, and was in force for its project at that time."""
        if event["type"] == ACTIVATED:
            self.activations.append((seq, event))
        if event["type"] not in DECIDED:
            return
        name, project, ts = event.get("policy_hash"), str(event.get("project")), str(event.get("ts"))
        if name is None:
            if event["type"] == OPENS:
                self.fault("policy", "it was accepted under no policy", seq)
            return
        told = "the policy that decided it (" + str(event.get("policy_id")) + ", version "
        told += str(event.get("policy_version")) + ")"
        made = self.rulings.get(str(name))
        if made is None:
            self.fault("policy", told + " is not in the pack", seq)
            return
        if not any(
            (one["policy_id"], one["policy_version"]) == (event.get("policy_id"), event.get("policy_version"))
            for one in made
        ):
            self.fault("policy", told + " is called otherwise in the pack", seq)
        spans = self.spans.get((str(name), project))
        if spans is None:
            spans = self.spans[str(name), project] = [
                span for one in made for span in self.in_force(one["parts"], project)
            ]
        if not any(first <= ts <= last for first, last in spans):
            self.fault("policy", told + " was not in force then for project " + project, seq)

    def in_force(self, parts: dict[str, int], project: str) -> Iterator[tuple[str, str]]:
        """When these versions and no others decided calls of the project, with what clocks may differ."""
        if set(parts) - {OPERATOR, "", project}:
            return
        first, last = datetime.min + EARLY, datetime.max - LATE
        for scope in {OPERATOR, "", project}:
            if scope in parts:
                version = self.versions[scope, parts[scope]]
                first, last = max(first, version.since), min(last, version.until or last)
            else:  # before there was any
                last = min([last] + [one.since for one in self.versions.values() if one.scope == scope])
        if first <= last:
            yield stamp(first - EARLY), stamp(last + LATE)

    def check_activations(self) -> None:
        """Records that put versions in force, in this pack or proven under its checkpoint, against the history."""
        for one in self.listed("proofs/policies.json"):
            try:
                leaf, seq = str(one["leaf"]).encode(), int(one["seq"])
                nodes = [bytes.fromhex(node) for node in one["proof"]]
                if root_from_inclusion(leaf_hash(leaf), seq, self.size, nodes) != self.root:
                    raise Broken("its record is not under the checkpoint")
                self.activations.append((seq, canonical(leaf)))
            except Broken as error:
                self.fault("policy", "the proof of an activation does not hold: " + str(error))
            except (ValueError, KeyError, TypeError):
                self.fault("policy", "proofs/policies.json is not of this format")
        announced = set()
        for seq, event in self.activations:
            try:
                detail = event["detail"]
                place = str(event.get("project") or ""), int(detail["number"])
                version, at = self.versions.get(place), moment(str(event["ts"]))
                named = version_name({"scope": place[0], "number": place[1]})
                if version is None:
                    raise Broken("it put " + named + " in force, which is not in the history")
                announced.add(place)
                if version.sha256 != detail["sha256"]:
                    raise Broken("it put another text in force than the history has as " + named)
                if not -EARLY <= at - version.since <= EARLY:
                    raise Broken("it put " + named + " in force at another time than the history says")
                made = self.rulings.get(str(detail.get("policy_hash")), [])
                if made and not any(one["parts"].get(place[0]) == place[1] for one in made):
                    raise Broken("it says that " + named + " made another policy than the pack does")
                held = self.unproven.get(str(detail.get("policy_hash")))
                if held is not None and any(
                    (str(part["scope"]), int(part["number"])) == place for part in held["made_of"]
                ):
                    del self.unproven[str(detail.get("policy_hash"))]
            except Broken as error:
                self.fault("policy", str(error), seq)
            except (ValueError, KeyError, TypeError):
                self.fault("policy", "it is not an activation of this format", seq)
        for name in self.unproven:
            self.fault("policy", "nothing shows what policy " + name + " said: neither its text nor a record")
        silent = sorted(version_name(one.said) for place, one in self.versions.items() if place not in announced)
        if silent:
            self.notes.append(
                "No record of this tenant says when these came into force; their times are what the gateway's register "
                "says: " + ", ".join(silent[:10]) + (", and others" if len(silent) > 10 else "")
            )

    # --- what vouches from outside ---

    def check_outside(self) -> None:
        """From a checkpoint over the records to the anchor's, and from there to witnesses and timestamps."""
        if "proofs/anchor.json" not in self.files:
            self.notes.append("Nothing outside the log vouches for this pack: it has no anchor.")
            return
        try:
            said = json.loads(self.pack.read("proofs/anchor.json"))
            text = self.open_signed(str(said["checkpoint"]), self.origin)
            origin, size, root = parse_checkpoint(text)
            leaf, seq = str(said["leaf"]).encode(), int(said["seq"])
            vouchers = [(str(one["note"]), list(one["proof"]), one.get("token")) for one in said["vouchers"]]
        except (ValueError, KeyError, TypeError):
            self.fault("anchor", "proofs/anchor.json is not of this format")
            return
        except Broken as error:
            self.fault("anchor", "the anchored checkpoint does not hold: " + str(error))
            return
        if origin != self.origin or self.roots.get(size, self.root if size == self.size else b"") != root:
            self.fault("anchor", "the anchored checkpoint is not one over these records: another history was anchored")
        event = canonical(leaf)
        if event.get("checkpoint_sha256") != hashlib.sha256(text.encode()).hexdigest():
            self.fault("anchor", "the anchor vouches for another checkpoint")
        name = self.origin.rpartition("/")[0] + "/_anchor"
        for note, proof, token in vouchers:
            try:
                over = self.open_signed(note, name)
                _, size, root = parse_checkpoint(over)
                nodes = [bytes.fromhex(node) for node in proof]
                if root_from_inclusion(leaf_hash(leaf), seq, size, nodes) != root:
                    raise Broken("the anchored checkpoint is not under it")
                self.check_witnesses(note, over)
                if token is not None:
                    self.check_token(str(token), over)
            except (Broken, ValueError) as error:
                self.fault("anchor", "a checkpoint of the anchor does not hold: " + str(error))

    def check_witnesses(self, note: str, text: str) -> None:
        for line in note.rpartition("\n\n")[2].splitlines():
            name, _, encoded = line[2:].partition(" ")
            raw = base64.b64decode(encoded)
            if len(raw) != 76:  # key id, time, signature: a cosignature
                continue
            key = next((key for key in self.witnesses if key[0] == name and key[2] == raw[:4]), None)
            when = int.from_bytes(raw[4:12], "big")
            told = name + " cosigned the anchor at " + time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(when))
            if key is None:
                self.notes.append(told + "; not checked: give its key with --witness")
            elif ed25519(key[1], ("cosignature/v1\ntime " + str(when) + "\n" + text).encode(), raw[12:]):
                self.notes.append(told + "; its signature holds")
            else:
                raise Broken("the cosignature of " + name + " is wrong")

    def check_token(self, name: str, text: str) -> None:
        """RFC 3161: that the token is over this text, and its time. Not the authority's signature: that needs more
        than the standard library."""
        when = stamped(self.pack.read(name), text.encode())
        self.notes.append(
            "A time-stamping authority says that the anchor was there at " + when + ". Its signature is not checked "
            "here: openssl ts -verify -in " + name + " -data FILE -CAfile ROOT, FILE being the anchor's three lines"
        )

    # --- telling ---

    def report(self) -> dict[str, Any]:
        about = {name: self.manifest.get(name) for name in ("tenant", "origin", "key", "first", "end", "made_at")}
        total = sum(self.counts.values())
        return {
            "ok": total == 0,
            "faults": total,
            "findings": self.findings,
            "notes": self.notes,
            "records": self.records,
            "fields": self.states,
            **about,
        }


def printable(text: str) -> str:
    return "".join(char if char.isprintable() else "\ufffd" for char in text)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="verify.py", description="Check an evidence pack, offline.")
    parser.add_argument("pack", help="the zip file, or the folder it was unpacked to")
    parser.add_argument("--key", help="the log's verifier key, from a place of your own")
    parser.add_argument("--checkpoint", action="append", default=[], help="a checkpoint you kept; may be repeated")
    parser.add_argument("--witness", action="append", default=[], help="a witness's verifier key; may be repeated")
    parser.add_argument("--json", action="store_true", help="for machines")
    options = parser.parse_args(arguments)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", errors="replace")  # type: ignore[union-attr]
    try:
        held = [Path(name).read_text(encoding="utf-8") for name in options.checkpoint]
        check = Check(Pack(Path(options.pack)), options.key, held)
        check.witnesses = [parse_witness(text) for text in options.witness]
        try:
            check.run()
        except Broken as error:
            check.fault("pack", str(error))
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        print(
            json.dumps({"ok": False, "error": str(error)})
            if options.json
            else "The pack cannot be read: " + printable(str(error))
        )
        return 2
    report = check.report()
    if options.json:
        print(json.dumps(report, indent=2))
        return 0 if report["ok"] else 1
    for finding in report["findings"]:
        where = "" if finding["seq"] is None else "record " + str(finding["seq"]) + ": "
        print("FAIL  " + where + printable(finding["says"]))
    if report["faults"] > len(report["findings"]):
        print("FAIL  and " + str(report["faults"] - len(report["findings"])) + " more of the same kinds")
    for note in report["notes"]:
        print("note  " + printable(note))
    print(
        str(report["records"])
        + " records of "
        + printable(str(report["tenant"]))
        + ", number "
        + str(report["first"])
        + " and on; private values: "
        + (", ".join(str(count) + " " + state for state, count in sorted(report["fields"].items())) or "none")
    )
    print("The pack holds." if report["ok"] else "The pack DOES NOT HOLD.")
    return 0 if report["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
