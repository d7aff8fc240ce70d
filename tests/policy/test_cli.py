import json
import os

import pytest
from typer.testing import CliRunner

from policy.cli import app
from tests.policy.conftest import TENANT


@pytest.fixture
def run(tmp_path):
    def invoke(command, text, *more):
        file = tmp_path / "policy.yaml"
        file.write_text(text, encoding="utf-8")
        return CliRunner().invoke(app, [command, str(file), *more])

    return invoke


def test_check_of_a_sound_policy_says_so(run):
    result = run("check", TENANT)
    assert result.exit_code == 0 and "acme-default version 3 is sound; 1 tests passed" in result.output
    assert json.loads(run("check", TENANT, "--json").output)["ok"] is True


def test_check_prints_every_problem_with_its_line_and_exits_1(run):
    result = run("check", TENANT.replace("process_in", "proces_in"))
    assert (
        result.exit_code == 1 and "line 5: residency.proces_in: unknown key; did you mean process_in?" in result.output
    )
    assert json.loads(run("check", "nonsense", "--json").output)["ok"] is False


def test_check_of_a_policy_that_fails_its_test_exits_1(run):
    result = run("check", TENANT + "  - {name: open, given: {compute_country: US}, expect: allow}")
    assert result.exit_code == 1 and "FAIL  open" in result.output


def test_test_prints_one_line_a_test(run):
    result = run("test", TENANT)
    assert result.exit_code == 0 and result.output.splitlines() == ["pass  US-owned host is refused", "1 of 1 passed"]
    rows = json.loads(run("test", TENANT, "--json").output)
    assert rows[0]["passed"] and "residency.operator.ultimate_parent" in rows[0]["reasons"][0]


def test_a_project_that_loosens_is_told_by_rule(run, tmp_path):
    project = tmp_path / "project.yaml"
    project.write_text("policy: shop\nversion: 1\nlimits: {rpm: 9000}\n", encoding="utf-8")
    result = run("check", TENANT, "--project", str(project))
    assert result.exit_code == 1 and "limits.rpm: 9000 is above the tenant's 600" in result.output


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00"])
def test_a_file_that_cannot_be_read_is_told_without_a_traceback(tmp_path, content):
    file = tmp_path / "p.yaml"
    if content is not None:
        file.write_bytes(content)
    result = CliRunner().invoke(app, ["check", str(file)])
    assert result.exit_code == 1 and "p.yaml: " in result.output and "Traceback" not in result.output


@pytest.mark.parametrize("kind", ["pipe", "device", "long"])
def test_a_document_is_read_within_bounds(tmp_path, kind):
    path = tmp_path / "policy.yaml"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.write_bytes(b"x" * (2 << 20))
    done = CliRunner().invoke(app, ["check", str(path)])
    assert done.exit_code == 1
    assert ("not a regular file" if kind != "long" else "at most 262144") in done.output
