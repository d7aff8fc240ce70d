"""Folders in which other users could replace files of an installation are named, with what to do."""

import json
import os

import pytest
from typer.testing import CliRunner

from gateway.cli.app import app
from gateway.installation.folder_access import writable_by_others


@pytest.fixture
def data(tmp_path):
    """Above it only folders that are safe, wherever tests keep theirs."""
    home = tmp_path / "home"
    home.mkdir(mode=0o755)
    result = CliRunner().invoke(app, ["init", "--data", str(home / "data")])
    assert result.exit_code == 0, result.output
    return home / "data"


def named(data):
    return {str(one.relative_to(data.parent)) for one in writable_by_others(data) if one.is_relative_to(data.parent)}


def test_a_folder_that_init_made_is_its_owners_alone(data):
    assert named(data) == set()


@pytest.mark.parametrize("mode", [0o770, 0o757, 0o777, 0o2775])
@pytest.mark.parametrize("place", ["data", "data/audit", "data/audit/keys", "data/secrets", "data/ca", "."])
def test_a_folder_that_others_may_write_in_is_named(data, place, mode):
    (data.parent / place).chmod(mode)
    assert named(data) == {place}


def test_the_sticky_bit_protects_a_folder_above_and_not_one_of_ours(data):
    data.parent.chmod(0o1777)
    assert named(data) == set()
    (data / "secrets").chmod(0o1777)
    assert named(data) == {"data/secrets"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_named(data):
    os.chown(data / "ca", 12345, -1)
    assert named(data) == {"data/ca"}


def test_doctor_says_so(data):
    (data / "audit").chmod(0o777)
    result = CliRunner().invoke(app, ["doctor", "--json", "--data", str(data)])
    (found,) = [one for one in json.loads(result.stdout) if one["code"] == "folder_writable_by_others"]
    assert str(data / "audit") in found["says"] and "chmod go-w" in found["fix"]
