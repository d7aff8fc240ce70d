"""The locks that images and the wheelhouse are installed from: in step with the project, complete, and with hashes."""

import re
import runpy
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

TREE = Path(__file__).parents[2]
FOLDER = TREE / "deploy" / "requirements"
SCRIPT = runpy.run_path(str(TREE / "deploy" / "requirements.py"))
LOCKS = sorted(path.stem for path in FOLDER.glob("*.txt"))
OF_TORCH = {"triton", "setuptools"}
"""Of what PyTorch asks for; its wheels for CUDA and for the CPU bring other versions than the one that tests run on."""


def entries(name: str) -> dict[str, str]:
    """What follows each package's name in a lock."""
    text = (FOLDER / f"{name}.txt").read_text(encoding="utf-8")
    return {entry.partition("==")[0]: entry for entry in re.split(r"\n(?=\S)", text.strip())}


def test_there_is_one_lock_for_each_set_of_requirements():
    assert sorted(SCRIPT["wanted"]()) == LOCKS


@pytest.mark.parametrize("name", LOCKS)
def test_whatever_the_project_asks_for_is_locked(name):
    locked = entries(name)
    for line in SCRIPT["wanted"]()[name]:
        asked = Requirement(line)
        assert canonicalize_name(asked.name) in locked, f"{line}; run: make lock"


@pytest.mark.parametrize("name", LOCKS)
def test_every_entry_is_one_version_with_hashes_and_no_address(name):
    for package, entry in entries(name).items():
        assert re.match(r"[a-z0-9-]+==[^ ]+( ; .*)? \\\n", entry), package
        assert re.fullmatch(r"(    --hash=sha256:[0-9a-f]{64}( \\)?\n?)+", entry.partition("\n")[2]), package


@pytest.mark.parametrize("name", [name for name in LOCKS if name != "build"])
def test_the_versions_are_those_that_the_tests_run_on(name):
    pins = {}
    for line in (TREE / "constraints.txt").read_text(encoding="utf-8").splitlines():
        if "==" in line and not line.startswith("#"):
            package, _, rest = line.partition("==")
            pins[canonicalize_name(package.strip())] = rest.split()[0].rstrip(";")
    for package, entry in entries(name).items():
        version = entry.partition("==")[2].split()[0]
        if package in pins and package not in OF_TORCH:
            assert version == pins[package], f"{package}; run: make lock"


def test_a_wheelhouse_has_what_any_patch_release_asks_for_and_nothing_of_other_systems():
    locked = (
        "async-timeout==5.0.1 ; python_full_version < '3.11.3' \\\n    --hash=sha256:a\n"
        "colorama==0.4.6 ; sys_platform == 'win32' \\\n    --hash=sha256:b\n"
        "triton==3.7.1 ; sys_platform == 'linux' \\\n    --hash=sha256:c \\\n    --hash=sha256:d\n"
        "typer==0.29.2 \\\n    --hash=sha256:e"
    )
    assert list(SCRIPT["for_linux"](locked)) == [
        "async-timeout==5.0.1 \\\n    --hash=sha256:a",
        "triton==3.7.1 \\\n    --hash=sha256:c \\\n    --hash=sha256:d",
        "typer==0.29.2 \\\n    --hash=sha256:e",
    ]


def test_the_gateways_lock_has_what_debians_python_asks_for_and_ours_does_not():
    """Debian 12 has Python 3.11.2, for which redis wants a package that later patch releases do without."""
    assert "async-timeout" in entries("gateway")


def test_without_a_gpu_only_what_is_for_one_is_left_out():
    left_out = {name for name, entry in entries("torch").items() if SCRIPT["FOR_GPUS"].match(entry)}
    assert {"torch", "nvidia-cublas", "cuda-toolkit"} <= left_out
    assert not left_out & {Requirement(line).name for line in SCRIPT["wanted"]()["torch"]} - {"torch"}, (
        "asked for by name"
    )
    assert not left_out & {"sympy", "networkx", "fsspec", "filelock", "jinja2", "setuptools"}
    assert not any(SCRIPT["FOR_GPUS"].match(entry) for entry in entries("backend").values())


@pytest.mark.parametrize("cpu", [None, "torch==2.13.0+cpu"])
def test_pytorchs_build_for_cpus_is_taken_for_each_python_from_its_own_index(tmp_path, monkeypatch, cpu):
    asked = []

    def download(what, python, to):
        pinned = Path(what[-1]).read_text() if what[0] == "--require-hashes" else None
        asked.append((python, what if pinned is None else "torch==" in pinned))

    monkeypatch.setitem(SCRIPT["wheelhouse"].__globals__, "_download", download)
    SCRIPT["wheelhouse"](["3.11", "3.12"], tmp_path, cpu=cpu, cpu_index="https://cpu.example.eu")
    from_index = [
        ("3.11", ["--index-url", "https://cpu.example.eu", cpu]),
        ("3.12", ["--index-url", "https://cpu.example.eu", cpu]),
    ]
    assert [each for each in asked if isinstance(each[1], list)] == (from_index if cpu else [])
    assert any(locked is True for _, locked in asked) == (cpu is None)
