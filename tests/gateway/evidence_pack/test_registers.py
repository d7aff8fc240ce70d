import json
import os

import pytest

from audit.errors import AuditError
from gateway.evidence_pack.registers import MAX_BYTES, NAME, Registers


def test_without_the_file_the_registers_are_empty(tmp_path):
    assert Registers.load(tmp_path) == Registers()
    assert Registers().of("acme").controller.name == ""


def test_parties_contracts_and_categories_are_read_by_tenant(tmp_path):
    acme = {"controller": {"name": "ACME GmbH"}, "activities": {"support": {"subject_categories": ["customers"]}}}
    (tmp_path / NAME).write_text(json.dumps({"processor": {"name": "P"}, "tenants": {"acme": acme}}))
    read = Registers.load(tmp_path)
    assert (read.processor.name, read.of("acme").controller.name) == ("P", "ACME GmbH")
    assert read.of("acme").activities["support"].subject_categories == ("customers",)
    assert read.of("acme2").controller.name == ""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "Invalid JSON"),
        ('{"tenant": {}}', "tenant: Extra inputs"),
        ('{"processor": {"mail": "x"}}', "processor.mail"),
        ('{"tenants": {"acme": {"contract": {"notice_days_entity": "soon"}}}}', "notice_days_entity"),
        (" " * (MAX_BYTES + 1), "has more than"),
    ],
)
def test_a_file_of_another_form_is_refused_with_the_place_of_the_fault(tmp_path, text, words):
    (tmp_path / NAME).write_text(text)
    with pytest.raises(AuditError, match=words):
        Registers.load(tmp_path)


def test_a_folder_in_its_place_is_refused(tmp_path):
    (tmp_path / NAME).mkdir()
    with pytest.raises(AuditError, match="is not a regular file"):
        Registers.load(tmp_path)


@pytest.mark.parametrize("kind", ["pipe", "device", "deep"])
def test_registers_are_read_within_bounds(tmp_path, kind):
    path = tmp_path / "registers.json"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.write_bytes(b"[" * 500_000)
    with pytest.raises(AuditError, match=r"registers\.json"):
        Registers.load(tmp_path)
