"""The shape of the code: who may import whom, how large directories and functions may grow, what a package offers."""

import ast
import importlib
import io
import re
import shutil
import subprocess
import sys
import tokenize
import tomllib
from collections import Counter
from pathlib import Path

import pytest
from radon.visitors import ComplexityVisitor

from tests.conftest import LONG
from tests.function_sizes import COMPLEX, LONG_FUNCTIONS
from tests.shared_names import OTHER_CONCEPT, SAME_CONCEPT

TREE = Path(__file__).parents[1]
PACKAGES = ("gateway", "regions", "policy", "audit", "backend")
MODULES = sorted(file for package in PACKAGES for file in (TREE / package).rglob("*.py"))
CHECKED = [*MODULES, *sorted(file for folder in ("tests", "bench", "deploy") for file in (TREE / folder).rglob("*.py"))]
OFFERING = [str(file.parent.relative_to(TREE)).replace("/", ".") for file in MODULES if file.stem == "__init__"]
MAX_MODULES = 14
MAX_LINES = 60
MAX_COMPLEXITY = 15
LEAST_TABLE = 3
CROWDED = {
    "audit/pack_verifier": "joined into one verify.py, whose parts go by their file names",
    "backend/models/families": "one file a model family",
    "gateway/database/migrations/versions": "one file a migration",
}
"""Directories with more than MAX_MODULES modules, each with the reason."""
VAGUE = {"utils", "helpers", "common", "manager", "misc"}
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
    "the packages of gateway.apis, from the top down": ("gateway/apis/body_fields.py", "import gateway.apis.endpoints"),
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


def test_a_module_says_what_it_holds_under_a_name_that_tells():
    silent = [name(file) for file in MODULES if not ast.get_docstring(ast.parse(file.read_text(encoding="utf-8")))]
    assert silent == [], "the first line of a module says what it holds"
    assert [name(file) for file in MODULES if {*file.parent.relative_to(TREE).parts, file.stem} & VAGUE] == []


def shared(files):
    """Names that modules of more than one top package have, and names that folders of more than one have."""
    owners = {}
    for file in files:
        is_folder = file.stem == "__init__"
        named = file.parent if is_folder else file.with_suffix("")
        owners.setdefault((is_folder, named.name), set()).add(named.parts[0])
    return {named for (_, named), packages in owners.items() if len(packages) > 1}


def test_a_name_in_two_packages_stands_for_one_concept():
    """Rename a module that stands for another one; say in tests/shared_names.py which concept they share otherwise."""
    assert shared(file.relative_to(TREE) for file in MODULES) == SAME_CONCEPT.keys() | OTHER_CONCEPT.keys()


@pytest.mark.parametrize(
    ("files", "found"),
    [
        (["audit/tree/plan.py", "backend/planner/plan.py"], {"plan"}),
        (["audit/plan/__init__.py", "backend/planner/plan/__init__.py"], {"plan"}),
        (["audit/plan/__init__.py", "backend/plan.py"], set()),
        (["audit/tree/plan.py", "audit/log/plan.py", "backend/planner/__init__.py"], set()),
        (["audit/__init__.py", "backend/audit.py"], set()),
    ],
)
def test_a_name_is_shared_by_packages_and_not_within_one(files, found):
    assert shared(map(Path, files)) == found


def test_no_directory_holds_more_modules_than_a_reader_takes_in():
    counts = Counter(name(file.parent) for file in MODULES if file.stem != "__init__")
    assert {folder for folder, count in counts.items() if count > MAX_MODULES} == CROWDED.keys()


def functions(tree, prefix=""):
    """Qualified name and node of every function in `tree`, those in classes and in functions included."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if not isinstance(node, ast.ClassDef):
                yield prefix + node.name, node
            yield from functions(node, f"{prefix}{node.name}.")
        else:
            yield from functions(node, prefix)


def over(limit, measure):
    """Functions above `limit` by `measure` of a syntax tree node, as "file function"."""
    return {
        f"{name(file)} {function}": size
        for file in MODULES
        for function, node in functions(ast.parse(file.read_text(encoding="utf-8")))
        if (size := measure(node)) > limit
    }


def lines(node):
    return node.end_lineno - node.lineno + 1


def complexity(node):
    """Cyclomatic complexity as radon counts it (McCabe 1976, with a point for each boolean operator)."""
    return ComplexityVisitor.from_ast(node).functions[0].complexity


@pytest.mark.parametrize(
    ("measure", "limit", "known"),
    [
        (lambda node: node.end_lineno - node.lineno + 1, MAX_LINES, LONG_FUNCTIONS),
        (complexity, MAX_COMPLEXITY, COMPLEX),
    ],
)
def test_functions_are_short_and_simple(measure, limit, known):
    """Those that are not yet are listed with their measure, which may shrink and must not grow."""
    found = over(limit, measure)
    assert {one: size for one, size in found.items() if size > known.get(one, limit)} == {}
    assert known.keys() - found.keys() == set(), "no longer above the limit: take it off the list"


def is_table(node):
    """Whether `node` holds a list, tuple, set or dict of LEAST_TABLE entries or more, or a text, on several lines."""
    return any(
        each.end_lineno > each.lineno
        and (
            (isinstance(each, ast.List | ast.Tuple | ast.Set) and len(each.elts) >= LEAST_TABLE)
            or (isinstance(each, ast.Dict) and len(each.keys) >= LEAST_TABLE)
            or (isinstance(each, ast.Constant) and isinstance(each.value, str | bytes))
        )
        for each in ast.walk(node)
        if isinstance(each, ast.expr)
    )


def is_kernel(node):
    """Whether `node` is a Triton kernel or launches one: its parameters are a table, with a line for each tensor."""
    return isinstance(node, ast.FunctionDef) and (
        any("jit" in ast.unparse(decorator) for decorator in node.decorator_list)
        or any(isinstance(call, ast.Call) and isinstance(call.func, ast.Subscript) for call in ast.walk(node))
    )


def heads(node):
    """The parts of a statement that may be a table: of one with a body only what stands before it."""
    found = [*getattr(node, "decorator_list", ()), *(node.bases if isinstance(node, ast.ClassDef) else ())]
    match node:
        case ast.FunctionDef(args=head) | ast.AsyncFunctionDef(args=head):
            found += [*head.defaults, *(each for each in head.kw_defaults if each)]
        case ast.For(iter=head) | ast.If(test=head) | ast.While(test=head):
            found.append(head)
        case ast.With(items=items) | ast.AsyncWith(items=items):
            found += [item.context_expr for item in items]
        case _ if not hasattr(node, "body"):
            found.append(node)
    return found


def laid_out_by_hand(source, kernels=True):
    """Lines of `source` with `fmt: skip` that stand on no data table and, with `kernels`, in no kernel."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    found = {token.start[0] for token in tokens if token.type == tokenize.COMMENT and "fmt: skip" in token.string}
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.stmt) or not found:
            continue
        if kernels and any(node.lineno <= line <= node.end_lineno for line in found) and is_kernel(node):
            found -= set(range(node.lineno, node.end_lineno + 1))
        for head in heads(node):
            of_head = {line for line in found if head.lineno <= line <= head.end_lineno + 1}
            if of_head and is_table(head):
                found -= of_head
    return sorted(found)


def test_only_data_tables_and_kernels_are_laid_out_by_hand():
    sources = {file: file.read_text(encoding="utf-8") for file in CHECKED}
    by_hand = {file: source for file, source in sources.items() if "fmt: skip" in source}
    found = [
        f"{name(file)}:{line}"
        for file, source in by_hand.items()
        for line in laid_out_by_hand(source, kernels="kernels" in file.parts)
    ]
    assert found == [], "take `# fmt: skip` away and run `make format`"
    assert [name(file) for file, source in sources.items() if re.search(r"^ *# *fmt: *off", source, re.MULTILINE)] == []


@pytest.mark.parametrize(
    "source",
    [
        "def f(\n    a, b, c, d,\n):  # fmt: skip\n    return [\n1,\n2,\n3]\n",
        "x = f(\n    a, b, c, d,\n)  # fmt: skip\n",
        "x = (a,\n     b)  # fmt: skip\n",
        "for x in (\n    a, b):  # fmt: skip\n    y = (1,\n2,\n3)\n",
        "@jit\ndef f():\n    pass\nx = f(\n    a)  # fmt: skip\n",
    ],
)
def test_what_is_no_table_is_not_laid_out_by_hand(source):
    assert len(laid_out_by_hand(source)) == 1


@pytest.mark.parametrize(
    "source",
    [
        "x = {\n    1: 2, 3: 4, 5: 6,\n}  # fmt: skip\n",
        "x = ('a'\n     'b')  # fmt: skip\n",
        "@mark('x', [\n    1, 2, 3,\n])  # fmt: skip\ndef f():\n    pass\n",
        "@triton.jit\ndef f(\n    a, b,\n):  # fmt: skip\n    pass\n",
        "def f():\n    kernel[(1,)](\n        a, b,\n    )  # fmt: skip\n",
    ],
)
def test_a_table_and_a_kernel_may_be_laid_out_by_hand(source):
    assert laid_out_by_hand(source) == []


def test_no_file_is_free_of_a_rule_as_a_whole_and_none_of_the_length_of_lines():
    wide = re.compile(r"^# *(?:ruff|flake8) *:.*", re.MULTILINE)
    found = {name(file): wide.findall(file.read_text(encoding="utf-8")) for file in CHECKED}
    assert {file: rules for file, rules in found.items() if rules} == {}
    assert "E501" not in (TREE / "pyproject.toml").read_text(encoding="utf-8")


def test_what_is_to_begin_first_is_there():
    assert [long for long in LONG if not (TREE / "tests" / long).is_file()] == []


def test_a_package_offers_what_it_says():
    for package in OFFERING:
        module = importlib.import_module(package)
        for offered in getattr(module, "__all__", ()):
            assert getattr(module, offered).__name__ == offered, package


def test_a_package_says_who_may_import_it():
    said = {package: importlib.import_module(package).__doc__ or "" for package in OFFERING}
    assert [package for package, doc in said.items() if not re.search(r"may\s+import|imports? it", doc)] == []


SETS = {"backend/kernels/fused.py", "backend/kernels/latent/fused.py"}
"""Modules that are a set of functions as a value, by the protocol in `interface` beside them."""


def test_no_module_hands_on_what_is_elsewhere():
    found = set()
    for file in MODULES:
        body = ast.parse(file.read_text(encoding="utf-8")).body[1:]
        own = [node for node in body if not isinstance(node, ast.Import | ast.ImportFrom)]
        if body and all(isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__" for node in own):
            found.add(name(file))
    assert found == SETS


def test_the_command_and_the_gateway_never_load_an_engine():
    heavy = "torch", "triton", "numpy", "transformers", "backend.engine"
    program = f"import gateway.cli.app, gateway.cli.up, sys; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], cwd=TREE, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


OTHER_CLIENTS = {"urllib.request", "http.client", "requests", "aiohttp", "urllib3", "httpx"}


def test_beside_the_hot_path_there_is_one_http_client():
    found = {
        f"{name(file)}: {module}"
        for file in MODULES
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for module in ([node.module] if isinstance(node, ast.ImportFrom) else [each.name for each in node.names])
        if module in OTHER_CLIENTS
    }
    assert found == set(), "make an audit.external_service.ExternalService (ADR 66)"
