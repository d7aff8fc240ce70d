"""The Makefile's virtual environment on machines where making one fails, and after that was mended."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TREE = Path(__file__).parents[2]
DEBIAN = """#!/bin/sh
# As Debian's python3 without python3-venv: the folder is made, and no pip is in it.
case "$*" in
  *"-m venv"*) '{python}' -m venv --without-pip "$3"; echo "ensurepip is not available" >&2; exit 1;;
esac
exec '{python}' "$@"
"""
OLD = "#!/bin/sh\nexit 1\n"


@pytest.fixture
def make(tmp_path):
    def run(python=sys.executable):
        words = [
            "make",
            "--no-print-directory",
            "-C",
            str(TREE),
            "venv",
            f"VENV={tmp_path / 'venv'}",
            f"PYTHON={python}",
        ]
        environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
        return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120, check=False)

    return run


def script(folder, text):
    return script_at(folder / "python", text)


def script_at(file, text):
    file.write_text(text.format(python=sys.executable))
    file.chmod(0o755)
    return file


def has_pip(folder):
    return subprocess.run([folder / "venv" / "bin" / "python", "-m", "pip", "--version"], check=False).returncode == 0


def test_an_environment_is_made_once(make, tmp_path):
    first, second = make(), make()
    assert (first.returncode, second.returncode) == (0, 0)
    assert "making a virtual environment" in first.stdout
    assert second.stdout == ""
    assert has_pip(tmp_path)


def test_without_the_venv_module_the_package_is_named_and_nothing_half_made_stays(make, tmp_path):
    failed = make(script(tmp_path, DEBIAN))
    assert failed.returncode != 0
    assert "apt install python3-venv" in failed.stdout
    assert not (tmp_path / "venv").exists()
    assert make().returncode == 0


def test_one_that_another_tool_made_without_pip_gets_it_and_keeps_what_it_holds(make, tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    (tmp_path / "venv" / "kept").touch()
    assert make().returncode == 0
    assert has_pip(tmp_path)
    assert (tmp_path / "venv" / "kept").exists()


def test_one_whose_python_is_gone_is_made_again(make, tmp_path):
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    (tmp_path / "venv" / "bin" / "python").symlink_to(tmp_path / "gone")
    assert make().returncode == 0
    assert has_pip(tmp_path)


def test_the_documents_are_checked_by_tests_that_there_are():
    said = subprocess.run(
        ["make", "-n", "docs-check", f"VENV={TREE / '.venv'}"], cwd=TREE, capture_output=True, text=True, check=False
    )
    asked = re.findall(r"tests/\S+\.py", said.stdout)
    assert len(asked) > 8, said.stdout + said.stderr
    assert [name for name in asked if not (TREE / name).is_file()] == []


def test_a_python_that_is_too_old_is_refused_before_anything_is_made(make, tmp_path):
    failed = make(script(tmp_path, OLD))
    assert failed.returncode != 0
    assert "Python 3.11 or newer" in failed.stdout
    assert not (tmp_path / "venv").exists()


INDEX = "https://download.pytorch.org/whl/cpu"


@pytest.mark.parametrize("has_gpu", [False, True])
def test_pytorchs_index_of_cpu_builds_is_asked_for_pytorch_alone_and_only_without_a_gpu(tmp_path, has_gpu):
    for tool in ("sh", "sed"):
        (tmp_path / tool).symlink_to(shutil.which(tool))
    if has_gpu:
        script_at(tmp_path / "nvidia-smi", "#!/bin/sh\n")
    words = [shutil.which("make"), "-n", "-B", "-C", str(TREE), f"VENV={tmp_path / 'venv'}", "demo"]
    said = subprocess.run(words, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=True).stdout
    installs = [line for line in said.splitlines() if " pip install " in line]
    assert [INDEX in line for line in installs if " torch==" in line] == [not has_gpu]
    assert [line for line in installs if INDEX in line and ("--no-deps" not in line or " torch==" not in line)] == []


def test_the_page_installs_the_pytorch_that_is_tested_from_the_index_that_make_asks():
    page = (TREE / "docs" / "install.md").read_text()
    pinned = next(line for line in (TREE / "constraints.txt").read_text().splitlines() if line.startswith("torch=="))
    assert f"pip install --no-deps {pinned}+cpu --index-url {INDEX}\n" in page
    assert set(re.findall(r"torch==[\w.+]+", page)) == {f"{pinned}+cpu"}
    assert f"TORCH_CPU_INDEX ?= {INDEX}\n" in (TREE / "Makefile").read_text()
