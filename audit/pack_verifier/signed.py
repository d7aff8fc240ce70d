"""What the log's key signed: the manifest, so all files; the checkpoint, so all records; the keys that it became."""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import Any

from audit.pack_verifier.archive import DAMAGED, Pack
from audit.pack_verifier.canonical import load_json
from audit.pack_verifier.fault import Broken, Findings
from audit.pack_verifier.note import open_note, parse_checkpoint, parse_key
from audit.pack_verifier.tree import leaf_hash, root_from_inclusion

NOT_LISTED = {"manifest.json", "manifest.sig"}


class Signed:
    """A pack under a key: `key` is the one an auditor gave, None to take the pack's own.

    `read_manifest` comes first and sets what the pack says of itself: `origin`, `tenant`, `first` and `end` of its
    records, `files`. `size` and `root` are those of the checkpoint, -1 and no bytes while none holds.
    """

    def __init__(self, pack: Pack, key: str | None, findings: Findings) -> None:
        self.pack, self.given, self.findings = pack, key, findings
        self.manifest: dict[str, Any] = {}
        self.origin, self.tenant, self.first, self.end = "", "", 0, 0
        self.files: dict[str, str] = {}
        self.trusted: list[bytes] = []
        self.size, self.root = -1, b""

    def read_manifest(self) -> None:
        """Raises Broken if there is none of this format: then there is nothing to check."""
        data = self.pack.read("manifest.json")
        try:
            manifest = load_json(data)
            self.origin, self.tenant = str(manifest["origin"]), str(manifest["tenant"])
            self.first, self.end = int(manifest["first"]), int(manifest["end"])
            self.files = dict(manifest["files"])
            name, public = parse_key(str(manifest["key"]))
        except (ValueError, KeyError, TypeError, OverflowError):
            raise Broken("manifest.json is not a manifest of this format") from None
        self.manifest = manifest
        if self.given is None:
            self.findings.notes.append(
                "The key was taken from the pack itself. Compare it with the one you hold: " + name
            )
        else:
            public = self.under_given(self.given, public)
        if self.origin.rpartition("/")[2] != self.tenant:
            self.findings.fault("manifest", "the manifest names tenant " + self.tenant + ", its tree is " + self.origin)
        self.trusted = self.succession(public)
        try:
            text = self.open_signed(self.pack.read("manifest.sig").decode(), self.origin)
            if text != self.origin + " evidence pack\n" + hashlib.sha256(data).hexdigest() + "\n":
                raise Broken("it was signed for another manifest")
        except (Broken, UnicodeDecodeError) as error:
            self.findings.fault("manifest", "the signature of the manifest does not hold: " + str(error))

    def under_given(self, key: str, own: bytes) -> bytes:
        """The public key that the auditor gave, which is to be the pack's `own`, or to lead there."""
        given, public = parse_key(key)
        if public != own and own not in self.succession(public):
            self.findings.fault(
                "key", "the pack was made under another key than the one you gave, and no succession leads to it"
            )
        if given not in (self.origin, self.origin.rpartition("/")[0]):
            self.findings.fault("key", "the key you gave is of " + given + ", the pack of " + self.origin)
        return public

    def open_signed(self, note: str, name: str) -> str:
        """The text of a note under the key we start from, or one of its succession. Raises Broken."""
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
                self.findings.fault("key", "the succession " + name + " does not hold: " + str(error))
        grown = True
        while grown:
            fresh = [b for a, b in links + [(b, a) for a, b in links] if a in known and b not in known]
            known += fresh[:1]
            grown = bool(fresh)
        return known

    def check_files(self) -> None:
        for fault in self.pack.layout_faults():
            self.findings.fault("files", fault)
        names = self.pack.names()
        for name in sorted(name for name, count in Counter(names).items() if count > 1):
            self.findings.fault("files", "the file " + name + " is in the pack more than once")
        for name in sorted(set(self.files) - set(names)):
            self.findings.fault("files", "the file " + name + " is missing")
        for name in sorted(set(names) - set(self.files) - NOT_LISTED):
            self.findings.fault("files", "the file " + name + " is not in the manifest")
        for name in sorted(set(self.files) & set(names)):
            try:
                if self.digest(name) != self.files[name]:
                    self.findings.fault("files", "the file " + name + " was changed")
            except Broken as error:
                self.findings.fault("files", str(error))

    def digest(self, name: str) -> str:
        """SHA-256 of a file, in hex. Raises Broken if it cannot be read."""
        digest = hashlib.sha256()
        with self.pack.open(name) as file:
            try:
                for block in iter(lambda: file.read(1 << 20), b""):
                    digest.update(block)
            except DAMAGED:
                raise Broken("the file " + name + " cannot be unpacked") from None
        return digest.hexdigest()

    def check_checkpoint(self) -> None:
        try:
            text = self.open_signed(self.pack.read("checkpoint").decode(), self.origin)
            origin, self.size, self.root = parse_checkpoint(text)
            if origin != self.origin:
                raise Broken("it is of " + origin + ", not of " + self.origin)
        except (Broken, UnicodeDecodeError) as error:
            self.findings.fault("checkpoint", "the checkpoint does not hold: " + str(error))

    def proven(self, leaf: bytes, seq: int, proof: list[bytes]) -> None:
        """Raises Broken if `leaf` is not record `seq` under the checkpoint."""
        if root_from_inclusion(leaf_hash(leaf), seq, self.size, proof) != self.root:
            raise Broken("its record is not under the checkpoint")
