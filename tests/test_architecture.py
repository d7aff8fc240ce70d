"""The shape of the code: who may import whom, how large a module may grow, what a package says that it offers."""

import ast
import importlib
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.conftest import LONG

TREE = Path(__file__).parents[1]
PACKAGES = ("gateway", "regions", "policy", "audit", "backend")
MODULES = sorted(file for package in PACKAGES for file in (TREE / package).rglob("*.py"))
OFFERING = [str(file.parent.relative_to(TREE)).replace("/", ".") for file in MODULES if file.stem == "__init__"]
MAX_LINES = 600  # until complexity and directory size are checked instead: a module is not split for its length alone
LINT = "import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command(['--no-cache']))"

# One line that breaks each contract, and where it is planted.
VIOLATIONS = {
    "gateway > regions > policy | audit | backend": ("audit/tree/merkle.py", "import policy.facts"),
    "of the backend, gateway imports the wire contract only": ("gateway/server/app.py", "import backend.server.app"),
    "regions knows the backend by its wire contract only": ("regions/routing/router.py", "import backend.engine"),
    "torch and triton live in the backend": ("gateway/request/enforcement.py", "import torch"),
    "policy is pure: no I/O libraries": ("policy/facts.py", "import socket"),
    "the record does not know who it records for": ("audit/events/event.py", "import aiohttp"),
    "the packages of gateway, from the top down": ("gateway/records/prices.py", "import gateway.request.pipeline"),
    "the packages of gateway.store, from the top down": (
        "gateway/store/lookup.py",
        "import gateway.store.reports.usage_report",
    ),
    "the packages of gateway.cli, from the top down": ("gateway/cli/terminal/shell.py", "import gateway.cli.admin.key"),
    "the packages of audit, from the top down": ("audit/tree/note.py", "import audit.log.audit_log"),
    "the packages of policy, from the top down": ("policy/document/document.py", "import policy.analysis.diff"),
    "the packages of policy.redact, from the top down": (
        "policy/redact/text/reading.py",
        "import policy.redact.detectors.detectors",
    ),
    "the packages of backend, from the top down": ("backend/engine/core/sequence.py", "import backend.server.app"),
    "the packages of backend.engine, from the top down": (
        "backend/engine/core/scheduler.py",
        "import backend.engine.engine",
    ),
    "the packages of backend.kernels, from the top down": (
        "backend/kernels/launching/launch.py",
        "import backend.kernels.fused",
    ),
    "the packages of backend.models, from the top down": ("backend/models/config.py", "import backend.models.loader"),
    "the packages of regions, from the top down": ("regions/identity/authority.py", "import regions.fleet.reconciler"),
}


def name(file):
    return str(file.relative_to(TREE))


def lint(folder):
    """Status and words of import-linter, run on the packages that lie in `folder`."""
    done = subprocess.run(
        [sys.executable, "-c", LINT], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    return done.returncode, done.stdout


def verdicts(said):
    """From import-linter's report: contract to KEPT or BROKEN."""
    return dict(re.findall(r"^(.+?) (KEPT|BROKEN)(?: \(.*\))?$", said, re.MULTILINE))


def test_every_contract_is_kept_and_one_planted_import_would_break_it(tmp_path):
    contracts = tomllib.loads((TREE / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    assert {contract["name"] for contract in contracts} == VIOLATIONS.keys(), "a contract is checked by breaking it"
    status, said = lint(TREE)
    assert (status, verdicts(said)) == (0, dict.fromkeys(VIOLATIONS, "KEPT")), said

    for package in PACKAGES:
        shutil.copytree(TREE / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(TREE / "pyproject.toml", tmp_path)
    for place, line in VIOLATIONS.values():
        (tmp_path / place).write_text(f"{(tmp_path / place).read_text()}\n{line}\n")
    status, said = lint(tmp_path)
    assert (status, verdicts(said)) == (1, dict.fromkeys(VIOLATIONS, "BROKEN")), said


@pytest.mark.parametrize("file", MODULES, ids=name)
def test_a_module_is_small_and_says_what_it_is(file):
    text = file.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MAX_LINES, "split it by concept"
    said = ast.get_docstring(ast.parse(text))
    assert said, "its first line says what it holds"
    assert file.stem not in {"utils", "helpers", "common", "manager", "misc"}


@pytest.mark.parametrize("long", LONG)
def test_what_is_to_begin_first_is_there(long):
    assert (TREE / "tests" / long).is_file()


@pytest.mark.parametrize("package", OFFERING)
def test_a_package_offers_what_it_says(package):
    module = importlib.import_module(package)
    for offered in getattr(module, "__all__", ()):
        assert getattr(module, offered).__name__ == offered


def test_the_command_and_the_gateway_never_load_an_engine():
    heavy = "torch", "triton", "numpy", "transformers", "backend.engine"
    program = f"import gateway.cli.app, gateway.cli.up, sys; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], cwd=TREE, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
