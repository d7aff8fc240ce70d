"""The wheel as a user gets it: everything the product reads is in it, nothing else, and it works without the clone."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

TREE = Path(__file__).parents[2]
PACKAGES = ("audit", "backend", "gateway", "policy", "regions")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(command, cwd=TREE, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """The wheel unpacked, as pip does, into a folder of its own."""
    folder = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


@pytest.fixture
def domicile(installed, tmp_path):
    def run(*arguments):
        libraries = next(path for path in sys.path if path.endswith("site-packages"))
        command = [sys.executable, "-S", "-m", "gateway", *map(str, arguments)]
        environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": f"{installed}:{libraries}"}
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    return run


def test_it_holds_each_file_of_the_packages_and_no_other(wheel):
    tracked = subprocess.run(
        ["git", "ls-files", *PACKAGES], cwd=TREE, capture_output=True, text=True, check=True
    ).stdout.split("\n")
    there = {line for line in tracked if line and (TREE / line).is_file()}
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert there <= held
    assert not held - there, "untracked files; add them, or remove them"


def test_its_metadata_names_the_licence_the_extras_and_the_command(wheel):
    archive = zipfile.ZipFile(wheel)
    folder = next(name.partition("/")[0] for name in archive.namelist() if ".dist-info/" in name)
    metadata = archive.read(f"{folder}/METADATA").decode()
    assert "License-Expression: Apache-2.0" in metadata
    assert {f"Provides-Extra: {extra}" for extra in ("engine", "ner", "postgres", "redis", "otel", "demo")} <= set(
        metadata.splitlines()
    )
    assert "domicile = gateway.cli.app:main" in archive.read(f"{folder}/entry_points.txt").decode()


def test_a_tenant_is_made_with_what_is_in_the_wheel(domicile, tmp_path, installed):
    """Presets, catalogue, countries, migrations and templates are files; each of these commands reads some."""
    steps = [
        ("init", "--cell", "eu-1"),
        ("tenant", "create", "acme", "--preset", "eu-strict"),
        ("policy", "new", "acme", "--preset", "health", "-o", "policy.yaml"),
        ("region", "list"),
        ("audit", "export", "acme", "-o", "acme.zip"),
    ]
    for step in steps:
        done = domicile(*step)
        assert done.returncode == 0, (step, done.stderr)
    assert (tmp_path / "policy.yaml").is_file() and (tmp_path / "acme.zip").is_file()


def test_it_finds_itself_and_not_the_clone(domicile, installed, tmp_path):
    libraries = next(path for path in sys.path if path.endswith("site-packages"))
    said = subprocess.run(
        [sys.executable, "-S", "-c", "import gateway, policy; print(gateway.__file__, policy.__file__)"],
        cwd=tmp_path,
        env={"PYTHONPATH": f"{installed}:{libraries}"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert all(path.startswith(str(installed)) for path in said.split())
