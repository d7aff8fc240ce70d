"""Requests of persons as they are typed."""

import json
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from audit.cli.app import app
from audit.events.private_value import Private
from tests.audit.conftest import Home, accepted

SHELL = CliRunner()
ALICE = "alice@example.com"


@pytest.fixture
async def data(home: Home) -> Path:
    async with home.context() as context:
        await context.record(accepted("a"), Private({"input": "x"}, ALICE))
        await context.record(accepted("g", "globex"))
    return home.path.parent.parent


def run(data: Path, *words: object) -> Result:
    line = [*map(str, words), "--data", str(data)]
    return SHELL.invoke(app, ["request", *line], terminal_width=200, color=False)


def shown(result: Result) -> dict[str, object]:
    assert result.exit_code == 0, result.output
    (one,) = json.loads(result.stdout)["requests"]
    return one


def test_a_request_from_its_receipt_to_its_answer(data: Path, home: Home) -> None:
    words = ("create", "acme", "--right", "access", "--subject", ALICE, "--received", "2026-11-01T10:30:00+01:00")
    made = shown(run(data, *words, "--json"))
    assert (made["article"], made["due_at"]) == ("GDPR 15", "2026-12-01T09:30:00.000Z")
    dsar = SHELL.invoke(app, ["dsar", "acme", "--subject", ALICE, "--data", str(data)])
    assert dsar.exit_code == 0
    (act,) = shown(run(data, "list", "acme", "--open", "--json"))["candidates"]
    assert f"{act['seq']} (dsar.answered)" in run(data, "list", "acme").stdout
    closed = shown(run(data, "close", "acme", made["id"], "--act", act["seq"], "--json"))
    assert (closed["outcome"], closed["act_seq"]) == ("answered", act["seq"])
    assert "No request of a person is on record." in run(data, "list", "acme", "--open").stdout
    assert "No request of a person is on record." in run(data, "list", "globex").stdout
    assert ALICE not in str(home.events("acme"))


@pytest.mark.parametrize(
    ("words", "status", "why"),
    [
        (("create", "acme", "--right", "marriage", "--subject", ALICE), 1, "is no right of a person"),
        (("create", "acme", "--right", "access", "--subject", ALICE, "--received", "today"), 2, "is no moment"),
        (
            ("create", "acme", "--right", "access", "--subject", ALICE, "--received", "2999-01-01T00:00Z"),
            1,
            "future",
        ),
        (("create", "acme", "--right", "access"), 2, "--subject"),
        (("extend", "acme", "no-such", "--reason", "complexity"), 1, "has no request no-such; see"),
        (("close", "globex", "no-such"), 1, "has no request no-such; see"),
    ],
)
def test_a_mistake_is_told_and_leaves_no_record(
    data: Path, home: Home, words: tuple[str, ...], status: int, why: str
) -> None:
    before = home.types("acme")
    wrong = run(data, *words)
    assert wrong.exit_code == status and why in wrong.output, wrong.output
    assert ALICE not in wrong.output
    assert home.types("acme") == before


def test_a_refusal_needs_its_reason_as_a_code(data: Path) -> None:
    made = shown(run(data, "create", "acme", "--right", "erasure", "--subject", ALICE, "--json"))
    for words, why in (((), "GDPR 12(4)"), (("--reason", "No Code"), "is not a code")):
        wrong = run(data, "close", "acme", made["id"], "--outcome", "refused", *words)
        assert wrong.exit_code != 0 and why in wrong.output
    words = ("close", "acme", made["id"], "--outcome", "refused", "--reason", "unknown_person")
    assert "refused, unknown_person" in run(data, *words).stdout


@pytest.mark.parametrize(
    "line",
    [
        f"request create acmee --right access --subject {ALICE}",
        f"hold create acmee --subject {ALICE}",
        "hold create acmee",
        "hold list acmee",
        "incident create acmee --law gdpr",
        "erase acmee --all --yes",
        f"restrict acmee --subject {ALICE}",
        "retention acmee",
        "breach acmee",
        "authority record acmee received --authority 'A court' --country US",
        "model record acmee --model m --what system_prompt",
    ],
)
def test_a_mistyped_tenant_is_told_and_gets_no_record(data: Path, home: Home, line: str) -> None:
    """A hold under a wrong name would not keep the data that it is meant to keep."""
    wrong = SHELL.invoke(app, [*shlex.split(line), "--data", str(data)])
    assert wrong.exit_code == 1 and "acmee" in wrong.output, wrong.output
    shown_now = SHELL.invoke(app, ["show", "--json", "--data", str(data)])
    assert "acmee" not in shown_now.output
