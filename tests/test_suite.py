"""A run of the suite: what fails twice fails it, what fails once beside others is named."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TREE = Path(__file__).parents[1]
FLAKY = """
from pathlib import Path
def test_of_a_busy_machine():
    first = not Path("seen").exists()
    Path("seen").touch()
    assert not first
"""
NAMED = "FAILED AT FIRST, passed alone; to be mended: test_one.py::test_of_a_busy_machine"


@pytest.fixture
def run(tmp_path):
    def run(text, *arguments):
        (tmp_path / "test_one.py").write_text(text)
        environment = {**os.environ, "PYTHONPATH": str(TREE)}
        for name in [name for name in environment if name.startswith("PYTEST_")]:
            del environment[name]
        return subprocess.run(
            [sys.executable, "-m", "tests.suite", "-q", *arguments],
            cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip

    return run


def test_a_test_that_fails_beside_others_and_passes_alone_is_named_and_fails_nothing(run):
    done = run(FLAKY + "def test_good(): pass\n", "-n", "2")
    assert (done.returncode, done.stdout.count(NAMED)) == (0, 1), done.stdout


def test_a_test_that_fails_twice_fails_the_run(run):
    done = run(FLAKY + "def test_bad(): assert False\n")
    assert done.returncode == 1
    assert "FAILED AT FIRST" not in done.stdout


def test_many_failures_are_not_tried_again(run):
    done = run("".join(f"def test_{number}(): assert False\n" for number in range(6)))
    assert done.returncode == 1
    assert "once more" not in done.stdout


@pytest.mark.parametrize(
    ("text", "status"), [("def test_good(): pass\n", 0), ("import nothing_of_that_name\n", 2), ("", 5)]
)
def test_without_a_failed_test_the_status_is_pytests(run, text, status):
    done = run(text)
    assert done.returncode == status
    assert "once more" not in done.stdout
