"""Only what shows evidence of its hardware answers: a real backend over TLS, and a machine's signing key of our own."""

import asyncio
import json
import sys
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from gateway.directory.attestor import Attestor
from regions.fleet.deployment import Deployment
from regions.fleet.health import Prober
from tests.backend.tiny import tiny_model, write_folder
from tests.fakes.lab import POLICY, lab
from tests.fakes.small_engines import small_engines
from tests.regions.evidence.hardware import MEASUREMENT, Chain, pem, vcek

ATTESTED = POLICY + "backend: {attested: [sev-snp]}\n"
ROOT = Path(__file__).parents[2]
SCRIPT = """#!{python}
import json, sys
sys.path.insert(0, {root!r})
from pathlib import Path
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from tests.regions.evidence.hardware import b64, snp_report
here = Path({here!r})
key = load_pem_private_key((here / "chip.key").read_bytes(), None)
fields = json.loads((here / "fields.json").read_text())
report = snp_report(key, data=bytes.fromhex(sys.argv[1]), **fields)
print(json.dumps([{{"technology": "sev-snp", "report": b64(report), "certificates": (here / "chip.pem").read_text()}}]))
"""


def machine(here: Path) -> Chain:
    """A program that attests as a chip of ours does, with what `fields.json` changes."""
    chain = Chain(ec.SECP384R1(), vcek())
    key = chain.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (here / "chip.key").write_bytes(key)
    (here / "chip.pem").write_text(chain.pem)
    (here / "root.pem").write_text(pem(chain.root))
    (here / "fields.json").write_text("{}")
    (here / "attest").write_text(SCRIPT.format(python=sys.executable, root=str(ROOT), here=str(here)))
    (here / "attest").chmod(0o700)
    return chain


async def test_a_backend_answers_while_its_hardware_attests_it_and_no_longer(tmp_path, monkeypatch):
    monkeypatch.setitem(Prober.__init__.__kwdefaults__, "interval_s", 0.05)
    monkeypatch.setattr("gateway.directory.attestor.RETRY_S", 0.2)
    machine(tmp_path)
    models = tmp_path / "models"
    (models / "writer").mkdir(parents=True)
    write_folder(models / "writer", tiny_model())

    def set_up(made):
        made.tenant("acme", ATTESTED)
        made.control.create_deployment(
            Deployment(
                tenant="acme",
                id="writer",
                model="writer",
                weights="writer",
                regions=("eu-fr-par",),
                wait_s=200,
                min_replicas=1,
            )
        )

    accepted = {"roots": [str(tmp_path / "root.pem")], "measurements": [MEASUREMENT.hex()]}
    settings = {
        "fleet": {"models": str(models), "evidence": str(tmp_path / "attest")},
        "attestation": {"accepted": {"sev-snp": accepted}},
    }
    body = {"model": "writer", "prompt": "the sea", "max_tokens": 4}
    with small_engines():
        async with lab(tmp_path, set_up=set_up, backends={}, **settings) as made:
            first = await made.post(body, "/v1/completions")
            assert first.status == 200, first.body
            (event,) = [each for each in made.events() if each["type"] == "backend.attested"]
            done = [each for each in made.events() if each["type"] == "inference.completed"][-1]
            assert (event["technology"], event["weights_sha256"]) == ("sev-snp", done["weights_sha256"])
            (connected, *_) = [each for each in made.events() if each["type"] == "routing.connected"]
            assert connected["backend_id"] == event["backend_id"]

            (tmp_path / "fields.json").write_text(json.dumps({"policy": 0x30000 | 1 << 19}))
            monkeypatch.setattr(Attestor, "is_due", lambda *_: True)  # as when the hour is over
            async with asyncio.timeout(60):
                while (refused := await made.post(body, "/v1/completions")).status == 200:
                    await asyncio.sleep(0.05)
            assert refused.status == 403, refused.body
            (reason,) = [each for each in refused.error["reasons"] if each["candidate"] == event["backend_id"]]
            assert (reason["rule"], "may be debugged" in reason["because"]) == ("backend.attested", True)
            assert [each["type"] for each in made.events()].count("backend.attestation_refused") == 1
