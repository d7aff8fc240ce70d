"""Evidence counts for a nonce, a TLS key and weights, on record before it does; what fails later counts no more."""

import json
from types import SimpleNamespace

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from gateway.directory.attestor import Attested, Attestor
from gateway.directory.backend_keys import key_sha256
from gateway.errors import AuditUnavailable, BackendUnavailable
from gateway.upstream.http1 import Peer
from regions.evidence.attestation import Reference, binding
from tests.regions.evidence import hardware as made
from tests.regions.evidence.hardware import MEASUREMENT, NOW, Chain, snp_report, vcek
from tests.regions.fleet.test_fleet import backend

WEIGHTS = "cd" * 32


class Machine:
    """A backend's hardware, as `Upstream.ask` reaches it. `spoil`: changes the report's fields. `told`: its answer."""

    def __init__(self):
        self.chip, self.tls, self.spoil, self.status, self.told = (
            Chain(ec.SECP384R1(), vcek()),
            Chain(ec.SECP256R1()),
            {},
            200,
            None,
        )
        self.nonces = []

    @property
    def peer(self):
        der = self.tls.leaf.public_bytes(Encoding.DER)
        return Peer("10.0.0.1:8443", "0" * 64, None, "TLSv1.3", der)

    async def ask(self, target, path, timeout_s, body):
        nonce = json.loads(body)["nonce"]
        self.nonces.append(nonce)
        if self.told is not None or self.status != 200:
            return self.status, self.told
        bound = binding(bytes.fromhex(nonce), key_sha256(self.tls.leaf), WEIGHTS)
        report = snp_report(self.chip.key, **{"data": bound, **self.spoil})
        piece = {"technology": "sev-snp", "report": made.b64(report), "certificates": self.chip.pem}
        return 200, json.dumps({"evidence": [piece]}).encode()


class Scene:
    def __init__(self, **more):
        self.machine, self.backend, self.events = Machine(), backend(), []
        reference = Reference(roots=self.machine.chip.roots, measurements=frozenset({MEASUREMENT.hex()}))
        self.references, self.full = {"sev-snp": reference}, False
        self.attestor = Attestor(self.machine, lambda: self.references, self.record, 3600, lambda: NOW, **more)
        self.attestor.connected(self.backend, self.machine.peer)

    async def record(self, event):
        if self.full:
            raise AuditUnavailable("full")
        self.events.append(event)

    async def ask(self, weights=WEIGHTS):
        return await self.attestor.ask(self.backend, SimpleNamespace(), weights)


async def test_evidence_that_holds_counts_and_is_on_record_whole():
    scene = Scene()
    assert scene.attestor.is_due(scene.backend, WEIGHTS)
    assert await scene.ask() == Attested(("sev-snp",))
    assert not scene.attestor.is_due(scene.backend, WEIGHTS)
    (event,) = scene.events
    assert (event.type, event.technology, event.measurement) == ("backend.attested", "sev-snp", MEASUREMENT.hex())
    assert event.nonce == scene.machine.nonces[0]
    assert (event.key_sha256, event.weights_sha256) == (key_sha256(scene.machine.tls.leaf), WEIGHTS)
    assert event.certificates == scene.machine.chip.pem


async def test_each_question_has_a_nonce_of_its_own_and_an_answer_to_another_does_not_hold():
    scene = Scene()
    await scene.ask()
    await scene.ask()
    assert len(set(scene.machine.nonces)) == 2
    first = scene.events[0]
    piece = {"technology": "sev-snp", "report": first.report, "certificates": first.certificates}
    scene.machine.told = json.dumps({"evidence": [piece]}).encode()
    found = await scene.ask()
    assert found.technologies == ()
    assert "not for this nonce" in found.fault


@pytest.mark.parametrize(
    ("spoil", "why"),
    [({"policy": 0x30000 | 1 << 19}, "debugged"), ({"measurement": b"x" * 48}, "launch measurement"),
     ({"versions": {"snp": 1}}, "another version")],
)  # fmt: skip
async def test_evidence_that_holds_no_more_counts_no_more_and_the_reason_is_on_record_once(spoil, why):
    scene = Scene()
    await scene.ask()
    scene.machine.spoil = spoil
    for _ in range(2):
        found = await scene.ask()
        assert (found.technologies, why in found.fault) == ((), True)
    assert [event.type for event in scene.events] == ["backend.attested", "backend.attestation_refused"]
    assert why in scene.events[1].reason
    assert scene.events[1].report is None
    scene.machine.spoil = {}
    assert (await scene.ask()).technologies == ("sev-snp",)


@pytest.mark.parametrize(
    ("status", "told"), [(404, b""), (200, b"{}"), (200, b"no JSON"), (200, b'{"evidence": []}'), (503, None)]
)
async def test_a_backend_that_sends_none_has_none(status, told):
    scene = Scene()
    scene.machine.status, scene.machine.told = status, told
    assert await scene.ask() == Attested(fault="it sends no evidence")


@pytest.mark.parametrize(
    "piece", [{"technology": "sgx", "report": "AAAA"}, {"technology": "tpm", "report": "no base64!"}]
)
async def test_what_is_no_evidence_is_refused(piece):
    scene = Scene()
    scene.machine.told = json.dumps({"evidence": [piece]}).encode()
    assert (await scene.ask()).technologies == ()
    assert scene.events[0].type == "backend.attestation_refused"


async def test_a_technology_that_is_not_configured_does_not_count():
    scene = Scene()
    scene.references = {"tpm": Reference()}
    assert "no evidence of sev-snp is accepted" in (await scene.ask()).fault
    scene.references = {}
    assert await scene.ask() == Attested(fault="the installation accepts no evidence")


async def test_evidence_that_cannot_be_recorded_does_not_count():
    scene = Scene()
    scene.full = True
    found = await scene.ask()
    assert (found.technologies, "could not be recorded" in found.fault) == ((), True)


async def test_another_key_on_a_new_connection_ends_it_and_is_not_used():
    scene = Scene()
    await scene.ask()
    scene.attestor.connected(scene.backend, scene.machine.peer)  # the same: nothing happens
    assert scene.attestor.found(scene.backend).technologies == ("sev-snp",)
    scene.machine.tls = Chain(ec.SECP256R1())
    with pytest.raises(BackendUnavailable, match="another key"):
        scene.attestor.connected(scene.backend, scene.machine.peer)
    assert scene.attestor.found(scene.backend).technologies == ()
    assert scene.attestor.is_due(scene.backend, WEIGHTS)
    assert (await scene.ask()).technologies == ("sev-snp",)


async def test_other_weights_or_another_backend_of_that_name_are_due_anew():
    scene = Scene()
    await scene.ask()
    assert scene.attestor.is_due(scene.backend, "ee" * 32)
    assert scene.attestor.is_due(backend(), WEIGHTS)
    assert scene.attestor.found(backend()) == Attested()
    assert "not for this nonce" in (await scene.ask("ee" * 32)).fault


async def test_without_tls_there_is_nothing_to_bind_to():
    scene = Scene()
    scene.attestor._keys.clear()
    scene.attestor.connected(scene.backend, Peer("127.0.0.1:1", None, None, None))
    assert "no TLS key" in (await scene.ask()).fault
