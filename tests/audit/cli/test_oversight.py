"""What took place outside the gateway, put on record as it is typed."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from audit.cli.app import app
from tests.audit.conftest import Home, accepted, completed

SHELL = CliRunner()


@pytest.fixture
async def data(home: Home) -> Path:
    async with await home.open() as log:
        await log.append(accepted("a", ai_system_id="cv"))
        await log.append(completed("a"))
    return home.path.parent.parent


def run(data: Path, *words: object) -> Result:
    line = [*map(str, words), "--data", str(data)]
    return SHELL.invoke(app, line, terminal_width=200, color=False)


def test_oversight_is_put_on_record_by_its_known_acts_alone(data: Path, home: Home) -> None:
    done = run(data, "oversight", "record", "acme", "overridden", "--system", "cv", "--request", "a")
    assert done.exit_code == 0, done.output
    last = home.events("acme")[-1]
    assert (last["request_id"], last["ai_system_id"], last["actor"]) == ("a", "cv", "cli")
    assert "epoch" not in last
    wrong = run(data, "oversight", "record", "acme", "shouted", "--system", "cv")
    assert wrong.exit_code == 2 and "type" in wrong.output and "Traceback" not in wrong.output


def test_a_change_that_the_gateway_cannot_see_is_put_on_record(data: Path, home: Home) -> None:
    words = ("model", "record", "acme", "--model", "small", "--what", "system_prompt", "--system", "cv")
    done = run(data, *words, "--after", "ab" * 32, "--substantial", "--json")
    assert done.exit_code == 0 and json.loads(done.stdout)["ok"], done.output
    last = home.events("acme")[-1]
    assert (last["type"], last["what"], last["substantial"]) == ("model.changed", "system_prompt", True)
    assert last["after"] == "ab" * 32 and "before" not in last
    wrong = run(data, *words, "--after", "You are a helpful assistant")
    assert wrong.exit_code == 2 and "after" in wrong.output and "helpful" not in wrong.output
    assert len(home.events("acme")) == 3


def test_requests_of_authorities_and_their_answers_are_one_matter(data: Path, home: Home) -> None:
    who = ("--authority", "A court", "--country", "US")
    asked = run(data, "authority", "record", "acme", "received", *who, "--basis", "18 USC 2713", "--json")
    matter = json.loads(asked.stdout)["matter_id"]
    done = run(data, "authority", "record", "acme", "answered", *who, "--matter", matter, "--outcome", "refused")
    assert done.exit_code == 0, done.output
    assert home.events("acme")[-1]["matter_id"] == matter
    wrong = run(data, "authority", "record", "acme", "received", *who[:2], "--country", "Texas")
    assert wrong.exit_code == 2 and "country" in wrong.output
