"""What vouches for the log from outside: its anchor, witnesses and timestamps over that."""

from __future__ import annotations

import base64
import hashlib
import time

from audit.pack_verifier.canonical import canonical, load_json
from audit.pack_verifier.ed25519 import ed25519
from audit.pack_verifier.fault import Broken, Findings
from audit.pack_verifier.note import parse_checkpoint
from audit.pack_verifier.signed import Signed
from audit.pack_verifier.timestamp import stamped
from audit.pack_verifier.tree import leaf_hash, root_from_inclusion

ANCHOR = "proofs/anchor.json"


class Attestations:
    """`witnesses` are the keys that the auditor knows: name, public key, key id."""

    def __init__(self, signed: Signed, findings: Findings) -> None:
        self.signed, self.findings = signed, findings
        self.witnesses: list[tuple[str, bytes, bytes]] = []
        self.seen: set[bytes] = set()  # public keys of the witnesses whose cosignature holds

    def anchored_sizes(self) -> set[int]:
        """Where the walk over the records must remember the root."""
        if ANCHOR not in self.signed.files:
            return set()
        try:
            return {int(str(load_json(self.signed.pack.read(ANCHOR))["checkpoint"]).split("\n")[1])}
        except (Broken, ValueError, KeyError, TypeError, IndexError):
            return set()

    def check(self, roots: dict[int, bytes]) -> None:
        """From a checkpoint over the records to the anchor's, and from there to witnesses and timestamps. A witness
        whose key the auditor gave must have cosigned."""
        self.check_anchor(roots)
        for name, public, _ in self.witnesses:
            if public not in self.seen:
                told = "the witness " + name + " cosigned nothing that vouches for these records"
                self.findings.fault("witness", told)

    def check_anchor(self, roots: dict[int, bytes]) -> None:
        if ANCHOR not in self.signed.files:
            said = self.signed.manifest.get("anchor")
            if said == "present":
                self.findings.fault("anchor", "the manifest says that an anchor vouches for the records, and none does")
            elif said == "pending":
                told = "The log has an anchor, but no checkpoint over these records was in it when the pack was made."
                self.findings.notes.append(told)
            else:
                self.findings.notes.append("Nothing outside the log vouches for this pack: it has no anchor.")
            return
        try:
            said = load_json(self.signed.pack.read(ANCHOR))
            text = self.signed.open_signed(str(said["checkpoint"]), self.signed.origin)
            origin, size, root = parse_checkpoint(text)
            leaf, seq = str(said["leaf"]).encode(), int(said["seq"])
            attestations = [(str(one["note"]), list(one["proof"]), one.get("token")) for one in said["vouchers"]]
        except (ValueError, KeyError, TypeError, AttributeError):
            self.findings.fault("anchor", ANCHOR + " is not of this format")
            return
        except Broken as error:
            self.findings.fault("anchor", "the anchored checkpoint does not hold: " + str(error))
            return
        known = roots.get(size, self.signed.root if size == self.signed.size else b"")
        if origin != self.signed.origin or known != root:
            told = "the anchored checkpoint is not one over these records: another history was anchored"
            self.findings.fault("anchor", told)
        event = canonical(leaf)
        if not isinstance(event, dict) or event.get("checkpoint_sha256") != hashlib.sha256(text.encode()).hexdigest():
            self.findings.fault("anchor", "the anchor vouches for another checkpoint")
        for note, proof, token in attestations:
            try:
                self.check_attestation(note, leaf, seq, [bytes.fromhex(node) for node in proof], token)
            except (Broken, ValueError, TypeError) as error:
                self.findings.fault("anchor", "a checkpoint of the anchor does not hold: " + str(error))

    def check_attestation(self, note: str, leaf: bytes, seq: int, proof: list[bytes], token: object) -> None:
        over = self.signed.open_signed(note, self.signed.origin.rpartition("/")[0] + "/_anchor")
        _, size, root = parse_checkpoint(over)
        if root_from_inclusion(leaf_hash(leaf), seq, size, proof) != root:
            raise Broken("the anchored checkpoint is not under it")
        self.check_witnesses(note, over)
        if token is not None:
            self.check_token(str(token), over)

    def check_witnesses(self, note: str, text: str) -> None:
        for line in note.rpartition("\n\n")[2].splitlines():
            name, _, encoded = line[2:].partition(" ")
            raw = base64.b64decode(encoded)
            if len(raw) != 76:  # key id, time, signature: a cosignature
                continue
            key = next((key for key in self.witnesses if key[0] == name and key[2] == raw[:4]), None)
            when = int.from_bytes(raw[4:12], "big")
            told = name + " cosigned the anchor at " + clock(when)
            if key is None:
                self.findings.notes.append(told + "; not checked: give its key with --witness")
            elif ed25519(key[1], ("cosignature/v1\ntime " + str(when) + "\n" + text).encode(), raw[12:]):
                self.findings.notes.append(told + "; its signature holds")
                self.seen.add(key[1])
            else:
                raise Broken("the cosignature of " + name + " is wrong")

    def check_token(self, name: str, text: str) -> None:
        """RFC 3161: that the token is over this text, and its time. Not the authority's signature: that needs more
        than the standard library."""
        when = stamped(self.signed.pack.read(name), text.encode())
        self.findings.notes.append(
            "A time-stamping authority says that the anchor was there at " + when + ". Its signature is not checked "
            "here: openssl ts -verify -in " + name + " -data FILE -CAfile ROOT, FILE being the anchor's three lines"
        )


def clock(seconds: int) -> str:
    """The time `seconds` after 1970, UTC. Raises Broken if there is no such time."""
    try:
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
    except (OverflowError, OSError, ValueError):
        raise Broken("a cosignature is of no time that there is") from None
