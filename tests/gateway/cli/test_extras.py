"""A command without what it needs says which extra brings it, and not where Python looked."""

import os
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from gateway.cli.extras import EVERYWHERE, MODULES, absent_extras, extra_of, install_line

TREE = Path(__file__).parents[3]
EXTRAS = tomllib.loads((TREE / "pyproject.toml").read_text())["project"]["optional-dependencies"]
WITHOUT = """
import sys
for name in sys.argv.pop(1).split(","):
    sys.modules[name] = None  # as if it were not installed
from gateway.cli.app import main
main()
"""


def run(tmp_path: Path, without: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(TREE)}
    command = [sys.executable, "-c", WITHOUT, without, *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False)


@pytest.mark.parametrize(
    ("without", "arguments", "extra"),
    [
        ("msgspec", ["backend", "serve", "--model", "x"], "engine"),
        ("gguf", ["backend", "serve", "--model", "demo"], "engine"),
        ("numpy", ["plan", "--model", "x", "--gpu", "h100"], "engine"),
        ("torch", ["demo"], "engine,demo"),
        ("openai", ["demo", "--check"], "engine,demo"),
    ],
)
def test_a_command_of_the_engine_without_it_names_the_extra(tmp_path, without, arguments, extra):
    done = run(tmp_path, without, *arguments)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert done.stderr.endswith(f"; run: pip install 'domicile[{extra}]'\n")
    assert list(tmp_path.iterdir()) == []


def test_what_no_extra_brings_is_a_fault_of_ours_and_keeps_its_traceback(tmp_path):
    done = run(tmp_path, "gateway.configuration.settings", "up")
    assert done.returncode == 1
    assert "Traceback" in done.stderr


def test_each_module_is_of_a_distribution_that_its_extra_asks_for():
    found = packages_distributions()
    for extra, modules in MODULES.items():
        asked = {_plain(Requirement(line).name) for line in EXTRAS[extra]}
        for module in modules:
            brought = {_plain(name) for name in found.get(module.partition(".")[0], ())}
            assert brought & asked or not brought, f"{module} is not of {extra}"
    assert set(EVERYWHERE) <= set(MODULES["engine"])


def test_each_extra_for_users_has_its_modules_here():
    assert EXTRAS.keys() - {"dev"} == MODULES.keys()


def test_a_module_inside_one_that_is_there_is_told_from_one_of_the_same_beginning():
    assert extra_of(ModuleNotFoundError(name="opentelemetry.sdk.trace")) == "otel"
    assert extra_of(ModuleNotFoundError(name="opentelemetry.sdkness")) is None
    assert extra_of(ModuleNotFoundError(name="redistribute")) is None
    assert extra_of(ModuleNotFoundError()) is None


def test_nothing_is_absent_where_all_is_installed():
    assert absent_extras(engine=True, demo=True) == []
    assert install_line("engine", "demo") == "pip install 'domicile[engine,demo]'"


def _plain(name: str) -> str:
    return name.lower().replace("_", "-")
