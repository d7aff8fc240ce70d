"""verify.py, the one file of an evidence pack: the parts in `audit.pack_verifier`, joined.

An auditor reads and runs one file with nothing beside it; we keep, lint, type and test it in modules. Joining is
textual: each part unchanged, after those that it imports, under one head of imports. The same parts give the same
bytes, whatever Python joins them.
"""

import ast
import builtins
import sys
from collections.abc import Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib.resources import files

PACKAGE = "audit.pack_verifier"
EVENTS = "audit.events"
ENTRY = "__main__"
SHARED = ("event_types", "ocsf")
"""Modules of `audit.events` that are parts as well: formats, where a second writing would be another format."""
WIDTH = 120
IMPORTS = ast.Import, ast.ImportFrom


class JoinError(ValueError):
    """The parts cannot be one file; the sentence says why."""


@cache
def program() -> bytes:
    """verify.py as this installation puts it into a pack."""
    folder = files(PACKAGE)
    parts = {file.name.removesuffix(".py"): file.read_text("utf-8") for file in folder.iterdir() if _is_part(file.name)}
    parts |= {name: files(EVENTS).joinpath(f"{name}.py").read_text("utf-8") for name in SHARED}
    return join(parts).encode()


def _is_part(name: str) -> bool:
    return name.endswith(".py") and name != "__init__.py"


def join(parts: Mapping[str, str]) -> str:
    """One module of the sources in `parts`, by name: those that ``__main__`` needs, each after what it needs itself.

    A part says what it needs as ``from audit.pack_verifier.other import name``, at its top. Raises JoinError if they
    need each other in a circle, import in a way that does not survive the joining, or use one name for two things.
    """
    read = {name: _Part(name, text, parts) for name, text in parts.items()}
    order = _order(read)
    owners: dict[str, str] = {}
    for part in order:
        for name in sorted(part.names):
            if hasattr(builtins, name):
                raise JoinError(f"{part.name} defines {name}, which means something else to the others")
            if owners.setdefault(name, part.name) != part.name:
                raise JoinError(f"{owners[name]} and {part.name} both define {name}")
        for line, name in part.brought:
            if owners.setdefault(name, line) != line:
                raise JoinError(f"{part.name} imports {name}, which is something else in {owners[name]}")
    main = order[-1]
    head = ["#!/usr/bin/env python3\n", f'"""{main.said}"""\n\n', _imports(order)]
    bodies = [f"{_title(part)}\n{part.body}" for part in order]
    return "".join(head) + "\n" + "\n\n".join(bodies)


class _Part:
    """One module: `body` is its text below the imports, `needs` the parts that it imports from."""

    def __init__(self, name: str, text: str, parts: Mapping[str, str]) -> None:
        self.name = name
        tree = ast.parse(text, filename=f"{name}.py", feature_version=(3, 9))
        self.said = ast.get_docstring(tree, clean=False) or ""
        self.needs: set[str] = set()
        self.brought: list[tuple[str, str]] = []
        """Statement and name of each import from the standard library."""
        rest = tree.body[1:] if self.said else tree.body
        heads = [node for node in rest if isinstance(node, IMPORTS)]
        everywhere = [node for node in ast.walk(tree) if isinstance(node, IMPORTS)]
        if not heads or rest[: len(heads)] != heads or len(everywhere) > len(heads):
            raise JoinError(f"{name} has to import at its top, and there alone")
        for node in heads:
            self._take(node, parts)
        self.names = _defined(rest[len(heads) :])
        self.body = "".join(text.splitlines(keepends=True)[heads[-1].end_lineno :])

    def _take(self, node: ast.Import | ast.ImportFrom, parts: Mapping[str, str]) -> None:
        """Note what an import statement brings. Raises JoinError if it does not survive the joining."""
        if any(alias.asname for alias in node.names):
            raise JoinError(f"{self.name} renames what it imports")
        names = [alias.name for alias in node.names]
        if isinstance(node, ast.ImportFrom):
            self._take_from(node, names, parts)
            return
        for name in names:
            self._foreign(name)
        self.brought += [(f"import {name}", name) for name in names]

    def _take_from(self, node: ast.ImportFrom, names: list[str], parts: Mapping[str, str]) -> None:
        """Note `names` of ``from module import names``: from another part a need, else from the standard library."""
        module = node.module or ""
        if node.level or module == PACKAGE or "*" in names:
            raise JoinError(f"{self.name} has to import from {PACKAGE}.PART by name")
        shared = module.removeprefix(f"{EVENTS}.") if module.startswith(f"{EVENTS}.") else ""
        if shared in SHARED:
            module = f"{PACKAGE}.{shared}"
        if not module.startswith(f"{PACKAGE}."):
            self._foreign(module)
            self.brought += [(f"from {module} import {name}", name) for name in names]
            return
        other = module.removeprefix(f"{PACKAGE}.")
        if other not in parts:
            raise JoinError(f"{self.name} imports from {other}, which is no part")
        self.needs.add(other)

    def _foreign(self, module: str) -> None:
        if module.partition(".")[0] not in sys.stdlib_module_names:
            raise JoinError(f"{self.name} imports {module}, which an auditor need not have")


def _defined(body: list[ast.stmt]) -> set[str]:
    """What the statements of a module define, by name."""
    found: set[str] = set()
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        else:
            found |= {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
    return found


def _order(parts: Mapping[str, _Part]) -> list[_Part]:
    """What the entry needs, each part after its own needs; by name where that leaves a choice."""
    if ENTRY not in parts:
        raise JoinError(f"there is no part {ENTRY} to begin with")
    wanted, open_ = {ENTRY}, [ENTRY]
    while open_:
        fresh = parts[open_.pop()].needs - wanted
        wanted |= fresh
        open_ += fresh
    sorter = TopologicalSorter({name: parts[name].needs for name in wanted})
    order: list[_Part] = []
    try:
        sorter.prepare()
    except CycleError as error:
        raise JoinError(f"parts need each other in a circle: {' '.join(error.args[1])}") from None
    while sorter.is_active():
        ready = sorted(sorter.get_ready())
        order += [parts[name] for name in ready]
        sorter.done(*ready)
    return order


def _imports(order: list[_Part]) -> str:
    """Every import from the standard library once, as our formatter would write them."""
    lines = {line for part in order for line, _ in part.brought}
    modules: dict[str, set[str]] = {}
    plain = sorted(line for line in lines if line.startswith("import "))
    for line in lines - set(plain):
        _, module, _, name = line.split(" ")
        modules.setdefault(module, set()).add(name)
    future = modules.pop("__future__", set())
    grouped = [f"from {module} import {', '.join(sorted(names))}" for module, names in sorted(modules.items())]
    if long := [line for line in grouped if len(line) > WIDTH]:
        raise JoinError(f"an import does not fit a line: {long[0]}")
    first = f"from __future__ import {', '.join(sorted(future))}\n\n" if future else ""
    return first + "".join(f"{line}\n" for line in [*plain, *grouped])


def _title(part: _Part) -> str:
    """A line with the part's name, and what it says of itself as a comment, unless that heads the file already."""
    line = f"# --- {part.name if part.name != ENTRY else 'the command'} "
    said = [] if part.name == ENTRY else part.said.rstrip().splitlines()
    return "\n".join([line.ljust(WIDTH, "-"), *(f"# {text}".rstrip() for text in said)])
