"""Does a changed suite find what the suite before it found? One planted fault in each of thirty functions.

    python -m bench.suite.mutations --against REVISION --out bench/results/mutations-DATE.json

Each fault is planted in the working tree, and the tests nearest to the function run: those of the module's own test
file, and, if these find nothing, those of a few files and folders that import it. A fault counts as found if one of
them fails; that test has to pass without the fault, or the run ends. What they do not find is planted in REVISION as
well, product and tests: what is found there was lost. The fault is drawn by a seed of the function's name, so that
another run plants the same ones. Results are written as they come. Ends with 1 if the suite of REVISION finds one
that the present suite does not.
"""

import argparse
import ast
import copy
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LEFT_OUT = shutil.ignore_patterns(".git", ".venv", "__pycache__", "build", ".mypy_cache", ".ruff_cache", ".hypothesis")

TARGETS: dict[str, tuple[str, ...]] = {
    "gateway/limits/bucket.py:Rate.drained": ("tests/gateway/limits",),
    "gateway/limits/bucket.py:Budget.begin": ("tests/gateway/limits",),
    "gateway/identity/keys.py:parse_key": ("tests/gateway/identity/test_keys.py",),
    "gateway/identity/jwt.py:check_claims": ("tests/gateway/identity",),
    "gateway/request/routes.py:Routes.may_help": ("tests/gateway/request", "tests/gateway/test_residency.py"),
    "gateway/request/enforcement.py:PolicyEnforcement.holds": (
        "tests/gateway/request",
        "tests/gateway/test_residency.py",
    ),
    "gateway/request/parking.py:_check_patience": ("tests/gateway/request/test_parking.py",),
    "gateway/openai/shape.py:*": ("tests/gateway/openai", "tests/gateway/test_fuzz.py"),
    "gateway/openai/sse.py:*": ("tests/gateway/openai",),
    "gateway/openai/stream_filter.py:*": ("tests/gateway/openai",),
    "gateway/records/prices.py:*": ("tests/gateway/records", "tests/gateway/store/reports"),
    "gateway/server/ledger.py:record_days": (
        "tests/gateway/test_ledger_retention.py",
        "tests/gateway/server/test_ledger.py",
        "tests/gateway/store/log_followers/test_ledger_writer.py",
    ),
    "gateway/admin/calls/access.py:*": ("tests/gateway/admin",),
    "gateway/store/change.py:*": ("tests/gateway/store", "tests/gateway/admin"),
    "regions/routing/router.py:choose": ("tests/regions/routing",),
    "regions/routing/router.py:trials": ("tests/regions/routing", "tests/gateway/test_residency.py"),
    "regions/fleet/back_off.py:*": ("tests/regions/fleet",),
    "policy/decision/decision.py:_refusals_of_backend": ("tests/policy/decision", "tests/gateway/test_residency.py"),
    "policy/decision/decision.py:_refusals_of_sink": ("tests/policy/decision",),
    "policy/redact/payment/iban.py:find_ibans": ("tests/policy/redact/payment",),
    "policy/redact/payment/payment_cards.py:_is_grouped": ("tests/policy/redact/payment",),
    "policy/redact/ids/checks.py:is_finnish_identity_code": ("tests/policy/redact/ids",),
    "audit/tree/merkle.py:root_from_inclusion": ("tests/audit/tree",),
    "audit/tree/note.py:open_note": ("tests/audit/tree",),
    "audit/log/sequencer.py:Sequencer._collect": ("tests/audit/log", "tests/audit/test_crash.py"),
    "audit/log/receipt.py:Receipt.parse": ("tests/audit/log/test_receipt.py",),
    "audit/events/canonical.py:_is_plain": ("tests/audit/events",),
    "backend/engine/core/block_manager.py:BlockManager.release": ("tests/backend/engine/core",),
    "backend/engine/core/scheduler.py:Scheduler._admitted": (
        "tests/backend/engine/core",
        "tests/backend/engine/test_oracle.py",
    ),
    "backend/engine/cpu/sampler.py:*": ("tests/backend/engine/cpu", "tests/backend/engine/test_oracle_ahead.py"),
}
"""``file:function``, with where the nearest tests lie; ``*`` stands for a function of the file that the seed draws."""

SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.And: ast.Or, ast.Or: ast.And, ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Mod: ast.Mult,
}  # fmt: skip


def functions(tree: ast.AST, prefix: str = "") -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
    """By qualified name; functions inside of functions belong to the outer one."""
    found: dict[str, ast.FunctionDef | ast.AsyncFunctionDef] = {}
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found[prefix + node.name] = node
        elif isinstance(node, ast.ClassDef):
            found |= functions(node, f"{prefix}{node.name}.")
    return found


def mutations(function: ast.AST) -> list[tuple[str, int]]:
    """(what is changed, place in `ast.walk`) of every fault that can be planted in `function`."""
    found = []
    for at, node in enumerate(ast.walk(function)):
        match node:
            case ast.Compare(ops=[op]) if type(op) in SWAPS:
                found.append((f"{type(op).__name__} becomes {SWAPS[type(op)].__name__}", at))
            case ast.BoolOp(op=op) | ast.BinOp(op=op) if type(op) in SWAPS:
                found.append((f"{type(op).__name__} becomes {SWAPS[type(op)].__name__}", at))
            case ast.UnaryOp(op=ast.Not()):
                found.append(("not is left out", at))
            case ast.Constant(value=bool(value)):
                found.append((f"{value} becomes {not value}", at))
            case ast.Constant(value=int(value)):
                found.append((f"{value} becomes {value + 1}", at))
    return found


def planted(source: str, name: str, at: int) -> str:
    """`source` with the fault at place `at` of the function `name`; the rest keeps its lines."""
    function = functions(ast.parse(source))[name]
    changed = copy.deepcopy(function)
    node = list(ast.walk(changed))[at]
    match node:
        case ast.Compare():
            node.ops = [SWAPS[type(node.ops[0])]()]  # type: ignore[list-item]
        case ast.BoolOp() | ast.BinOp():
            node.op = SWAPS[type(node.op)]()  # type: ignore[assignment]
        case ast.UnaryOp():
            node.op, node.operand = ast.Not(), ast.UnaryOp(op=ast.Not(), operand=node.operand)
        case ast.Constant(value=bool(value)):
            node.value = not value
        case ast.Constant(value=int(value)):
            node.value = value + 1
    lines = source.splitlines(keepends=True)
    first = min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)]) - 1
    indent = " " * function.col_offset
    written = "".join(f"{indent}{line}\n" for line in ast.unparse(ast.fix_missing_locations(changed)).splitlines())
    return "".join([*lines[:first], written, *lines[function.end_lineno :]])


def drawn(target: str, source: str) -> tuple[str, str, int]:
    """(function, what is changed, place) of the fault of `target`."""
    _, _, wanted = target.partition(":")
    chance = random.Random(target)
    of = functions(ast.parse(source))
    able = {name: found for name in of if wanted in ("*", name) and (found := mutations(of[name]))}
    if not able:
        raise SystemExit(f"error: {target}: no such function, or nothing in it to change; correct TARGETS")
    name = chance.choice(sorted(able))
    what, at = chance.choice(able[name])
    return name, what, at


def failing(tree: Path, tests: list[str], timeout_s: int) -> tuple[str | None, float]:
    """The first test that fails in `tree`, None if all pass; and the seconds it took."""
    began = time.monotonic()
    words = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--tb=no", *tests]
    try:
        done = subprocess.run(
            words,
            cwd=tree,
            env=os.environ | {"PYTHONPATH": str(tree)},
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"(not over within {timeout_s} s)", time.monotonic() - began
    took = time.monotonic() - began
    if done.returncode == 0:
        return None, took
    said = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return (said[0].partition(" ")[2].partition(" - ")[0] if said else f"(pytest ended with {done.returncode})"), took


def copies(folder: Path, against: str) -> dict[str, Path]:
    """The working tree, and that of the revision `against`."""
    now, before = folder / "now", folder / "before"
    shutil.copytree(ROOT, now, ignore=LEFT_OUT, symlinks=True)
    before.mkdir()
    packed = subprocess.run(["git", "archive", against], cwd=ROOT, capture_output=True, check=True)
    subprocess.run(["tar", "-x", "-C", str(before)], input=packed.stdout, check=True)
    return {"now": now, "before": before}


def tried(tree: Path, target: str, timeout_s: int) -> dict[str, Any]:
    """The fault of `target` in `tree`, and which test finds it. The tree is left as it was."""
    place = tree / target.partition(":")[0]
    there = [test for test in TARGETS[target] if (tree / test).exists()]
    own = place.relative_to(tree).parent / f"test_{place.name}"
    stages = [there] if not (tree / "tests" / own).is_file() else [[f"tests/{own.as_posix()}"], there]
    source = place.read_text(encoding="utf-8")
    name, what, at = drawn(target, source)
    place.write_text(planted(source, name, at), encoding="utf-8")
    found, took = None, 0.0
    for tests in stages:
        found, seconds = failing(tree, tests, timeout_s)
        took += seconds
        if found is not None:
            break
    place.write_text(source, encoding="utf-8")
    if found is not None and failing(tree, [found] if "::" in found else tests, timeout_s)[0] is not None:
        raise SystemExit(f"error: {found} fails without a fault too; mend it first")
    return {"function": f"{target.partition(':')[0]}:{name}", "fault": what, "found by": found, "seconds": round(took)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--against", required=True, help="the revision whose tests are the suite before")
    parser.add_argument("--out", type=Path, help="write the table here as well")
    parser.add_argument("--only", help="targets with this in their name")
    parser.add_argument("--timeout", type=int, default=900, help="seconds for the tests of one fault")
    parser.add_argument("--draw", action="store_true", help="only say which faults would be planted")
    options = parser.parse_args()
    wanted = [target for target in TARGETS if not options.only or options.only in target]
    if options.draw:
        for target in wanted:
            place = target.partition(":")[0]
            print(place, *drawn(target, (ROOT / place).read_text(encoding="utf-8")))
        return 0
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as temporary:
        trees = copies(Path(temporary), options.against)
        for target in wanted:
            row = tried(trees["now"], target, options.timeout)
            if row["found by"] is None and (trees["before"] / target.partition(":")[0]).exists():
                row["found before by"] = tried(trees["before"], target, options.timeout)["found by"]
            print(json.dumps(row), flush=True)
            rows.append(row)
            if options.out:
                options.out.write_text(json.dumps(report(options.against, rows), indent=2) + "\n", encoding="utf-8")
    print({name: value for name, value in report(options.against, rows).items() if name != "rows"})
    return int(any(row.get("found before by") is not None for row in rows))


def report(against: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "against": against,
        "faults": len(rows),
        "found": sum(row["found by"] is not None for row in rows),
        "found before and not now": sum(row.get("found before by") is not None for row in rows),
        "rows": rows,
    }


if __name__ == "__main__":
    sys.exit(main())
