"""`domicile policy check` and `domicile policy test`: look at a document before it is activated anywhere."""

import json
import os
import stat
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from policy.analysis.policy_tests import PolicyTestOutcome, run_tests
from policy.decision.compile import CompiledPolicy, compile_policy
from policy.document.countries import builtin_countries
from policy.document.document import load_document
from policy.document.marked_yaml import MAX_CHARACTERS
from policy.errors import PolicyDocumentError, PolicyError, Problem

MAX_BYTES = 4 * MAX_CHARACTERS + 4
"""Read of a file: more than the longest document has, which `parse_yaml` then refuses."""

app = typer.Typer(name="policy", help="Write, check and test policies.", no_args_is_help=True)

File = Annotated[Path, typer.Argument(metavar="FILE", help="A policy document, or the tenant's with --project.")]
Project = Annotated[Path | None, typer.Option("--project", help="A project's document that tightens FILE.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def check(file: File, project: Project = None, as_json: AsJson = False) -> None:
    """Read FILE, compile it and run its tests; exit 1 on any problem.

    Example: domicile policy check acme.yaml
    """
    policy, outcomes = _load(file, project, as_json)
    failures = [str(outcome) for outcome in outcomes if not outcome.passed]
    if failures:
        _fail(failures, as_json)
    if as_json:
        typer.echo(json.dumps({"ok": True, "policy": policy.policy_id, "version": policy.version, "hash": policy.hash}))
        return
    typer.echo(f"{policy.policy_id} version {policy.version} is sound; {len(outcomes)} tests passed")
    typer.echo(f"hash {policy.hash}, countries {policy.countries_version}")


@app.command()
def test(file: File, project: Project = None, as_json: AsJson = False) -> None:
    """Run the tests that FILE carries, one line each; exit 1 if one fails.

    Example: domicile policy test acme.yaml --project shop.yaml
    """
    _, outcomes = _load(file, project, as_json)
    if as_json:
        typer.echo(json.dumps([_as_json(outcome) for outcome in outcomes]))
    else:
        for outcome in outcomes:
            typer.echo(str(outcome))
        typer.echo(f"{sum(o.passed for o in outcomes)} of {len(outcomes)} passed")
    if not all(outcome.passed for outcome in outcomes):
        raise typer.Exit(1)


def _load(file: Path, project: Path | None, as_json: bool) -> tuple[CompiledPolicy, tuple[PolicyTestOutcome, ...]]:
    countries = builtin_countries()
    try:
        tenant = load_document(_read(file))
        policy = compile_policy(tenant, load_document(_read(project)) if project else None, countries)
    except PolicyDocumentError as error:
        _fail([str(problem) for problem in error.problems], as_json)
    except PolicyError as error:
        _fail([str(error)], as_json)
    return policy, run_tests(policy, countries)


def _read(file: Path) -> str:
    """The text of a document. Raises PolicyDocumentError for what is no regular file of UTF-8 text."""
    try:
        with open(os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as opened:
            if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
                raise PolicyDocumentError(Problem(0, "", f"{file} is not a regular file; name a policy document"))
            return opened.read(MAX_BYTES).decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "not UTF-8 text"
        raise PolicyDocumentError(Problem(0, "", f"{file}: {reason}; name a policy document")) from None


def _fail(problems: list[str], as_json: bool) -> NoReturn:
    if as_json:
        typer.echo(json.dumps({"ok": False, "problems": problems}))
    else:
        for problem in problems:
            typer.echo(f"error: {problem}", err=True)
    raise typer.Exit(1)


def _as_json(outcome: PolicyTestOutcome) -> dict[str, object]:
    return {
        "name": outcome.test.name,
        "expect": outcome.test.expect,
        "passed": outcome.passed,
        "reasons": [str(reason) for reason in outcome.decision.reasons],
    }
