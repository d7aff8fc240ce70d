"""Evidence in a pack: verify.py checks what it is bound to, `domicile evidence verify` all of it."""

import base64
import json
import zipfile

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from typer.testing import CliRunner

from audit.events.event import BackendAttested
from gateway.cli.app import app
from regions.evidence.roots import verified
from tests.audit.conftest import Home
from tests.audit.pack.test_export import make, settled, verify
from tests.regions.evidence import hardware as made
from tests.regions.evidence.hardware import BOUND, NOW, Chain, gpu, pem, snp, tdx, tpm

MAKERS = {"sev-snp": snp, "tdx": tdx, "tpm": tpm, "nvidia": gpu}


def event_of(evidence, reference, **changes):
    claims = verified(evidence, BOUND, NOW, reference)
    fields = {
        "type": "backend.attested", "tenant": "acme", "backend_id": "acme-1", "region": "eu-fr-par",
        "technology": claims.technology, "nonce": made.NONCE.hex(), "key_sha256": made.KEY,
        "weights_sha256": made.WEIGHTS, "measurement": claims.measurement,
        "report": base64.b64encode(evidence.report).decode(),
        "signature": base64.b64encode(evidence.signature).decode() or None,
        "certificates": evidence.certificates or None,
    }  # fmt: skip
    return BackendAttested(**{**fields, **changes})


def run(*words):
    return CliRunner().invoke(app, ["evidence", "verify", *map(str, words)])


async def packed(tmp_path, *events):
    """A pack with these on record."""
    home = Home(tmp_path / "home")
    async with home.context() as context:
        for event in events:
            await context.record(event)
        await settled(home)
    target = tmp_path / "pack.zip"
    await make(home, target)
    return target


def configured(tmp_path, **accepted):
    """A configuration that trusts authorities of our own."""
    sections = {}
    for technology, (chains, more) in accepted.items():
        file = tmp_path / f"{technology}.pem"
        file.write_text(pem(*(chain.root for chain in chains)))
        sections[technology.replace("_", "-")] = {"roots": [str(file)], **more}
    config = tmp_path / "mine.yaml"
    config.write_text(json.dumps({"attestation": {"accepted": sections}}))
    return config


async def test_a_pack_holds_evidence_that_both_programs_accept_and_a_spoiled_one_fails_in_both(tmp_path):
    chain, other = Chain(ec.SECP384R1(), made.vcek()), Chain(ec.SECP256R1())
    events = [event_of(*snp(chain)), event_of(*tpm(other)), event_of(*snp(chain), nonce="00" * 32)]
    good, bad = await packed(tmp_path, *events[:2]), None
    code, report = verify(good)
    assert code == 0, report
    with zipfile.ZipFile(good) as archive:
        listed = archive.read("attestations.csv").decode()
    assert listed.count("backend.attested") == 2
    assert made.MEASUREMENT.hex() in listed
    config = configured(tmp_path, sev_snp=([chain], {}), tpm=([other], {}))
    checked = run(good, "-c", config, "--json")
    assert checked.exit_code == 0, checked.output
    assert {each["technology"] for each in json.loads(checked.output)} == {"sev-snp", "tpm"}
    unknown = run(good, "--json")
    assert unknown.exit_code == 1
    assert "not a trusted root" in json.loads(unknown.output)[0]["why"]
    picky = configured(tmp_path, sev_snp=([chain], {"measurements": ["00" * 48]}), tpm=([other], {}))
    assert "launch measurement" in json.loads(run(good, "-c", picky, "--json").output)[0]["why"]

    (tmp_path / "other").mkdir()
    bad = await packed(tmp_path / "other", events[2])
    code, report = verify(bad)
    assert code == 1
    assert "its report is not for the nonce, key and weights" in json.dumps(report)
    spoiled = run(bad, "-c", config, "--json")
    assert spoiled.exit_code == 1
    assert "not for this nonce" in json.loads(spoiled.output)[0]["why"]


@pytest.mark.parametrize("name", list(MAKERS))
def test_every_technology_is_bound_at_its_place(name):
    from audit.pack_verifier.evidence import is_bound

    evidence, reference = MAKERS[name]()
    event = event_of(evidence, reference).model_dump(mode="json", exclude_none=True)
    assert is_bound(event)
    for field in ("nonce", "key_sha256", "weights_sha256"):
        assert not is_bound({**event, field: "00" * 32})
    assert not is_bound({**event, "report": "no base64!"})
    assert not is_bound({**event, "technology": "other"})


def test_version_5_of_tdx_is_bound_behind_the_kind_of_its_body():
    from audit.pack_verifier.evidence import is_bound

    evidence, reference = tdx(version=5)
    assert is_bound(event_of(evidence, reference).model_dump(mode="json", exclude_none=True))


@pytest.mark.parametrize("content", [b"", b"no zip"])
def test_what_is_no_pack_is_said_to_be_none(tmp_path, content):
    file = tmp_path / "pack.zip"
    file.write_bytes(content)
    for place in (file, tmp_path / "gone.zip", tmp_path):
        done = run(place)
        assert done.exit_code == 2
        assert "is no evidence pack" in done.output


@pytest.mark.parametrize(
    "text",
    ["attestation: {accepted: {sgx: {}}}", "attestation: 5", "[5]", "attestation: {accepted: {tpm: {roots: [gone]}}}"],
)
def test_a_configuration_that_cannot_be_used_is_named(tmp_path, text):
    config = tmp_path / "mine.yaml"
    config.write_text(text)
    done = run(tmp_path, "-c", config)
    assert done.exit_code == 2
    assert "mine.yaml" in done.output
