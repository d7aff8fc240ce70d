"""From a gateway that served calls to a pack that proves itself and is filled from its registers."""

import csv
import io
import json
import subprocess
import sys
import zipfile

import pytest

from audit.errors import AuditError
from gateway.evidence import gather
from tests.fakes.lab import chat, lab


async def test_the_registers_of_the_gateway_fill_an_evidence_pack(tmp_path):
    async with lab(tmp_path) as made:
        assert (await made.post(chat("hi"))).status == 200
    known = gather(tmp_path / "data", "acme")
    assert [backend.compute_country for backend in known.backends] == ["FR"]
    assert {operator.id for operator in known.operators} == {backend.operator for backend in known.backends}
    assert all(policy.text and policy.activated_by for policy in known.policies)
    assert known.policies and known.activities and known.controller.name


def test_without_an_installation_or_a_tenant_there_is_nothing_to_say(tmp_path):
    assert gather(tmp_path / "none", "acme").activities == ()
    assert not (tmp_path / "none").exists()


async def test_a_tenant_of_the_log_alone_has_empty_registers(tmp_path):
    async with lab(tmp_path):
        pass
    assert gather(tmp_path / "data", "_system").policies == ()
    (tmp_path / "data" / "catalogue.yaml").write_text("nonsense")
    with pytest.raises(AuditError, match="registers cannot be read"):
        gather(tmp_path / "data", "acme")


async def test_the_command_exports_a_pack_with_the_registers_in_it(tmp_path):
    async with lab(tmp_path) as made:
        await made.post(chat("hi"))
    pack, data = tmp_path / "pack.zip", tmp_path / "data"
    words = ["audit", "export", "--tenant", "acme", "--data", data, "--output", pack]
    done = subprocess.run([sys.executable, "-m", "gateway", *map(str, words)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(pack) as archive:
        ropa = list(csv.DictReader(io.StringIO(archive.read("ropa_controller.csv").decode("utf-8-sig"))))
        policies = json.loads(archive.read("policy_history.json"))
    assert ropa[0]["legal_basis"]
    assert "residency" in policies[0]["text"]
