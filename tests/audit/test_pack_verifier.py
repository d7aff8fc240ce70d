"""verify.py runs wherever an auditor has a Python: from 3.9 on, with nothing beside it."""

import ast
import gc
import shutil
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from audit.pack.export import export
from audit.pack.program import program
from tests.audit.conftest import KNOWN, Home, accepted, completed
from tests.audit.pack.test_export import settled
from tests.fakes.needs import missing

PYTHONS = [f"python3.{minor}" for minor in range(9, 15)]


def found(python: str) -> str | None:
    """Where it is, by its name or as pyenv keeps it; a name may be a shim of what is not installed."""
    kept = sorted(Path.home().glob(f".pyenv/versions/{python.removeprefix('python')}.*/bin/python3"))
    for one in [shutil.which(python), *map(str, kept)]:
        if one and subprocess.run([one, "-c", ""], capture_output=True, check=False).returncode == 0:
            return one
    return None


def parsed(text: str) -> ast.Module:
    """Its tree in the oldest Python promised, parsed on a thread of its own: CPython 3.11 counts depth by thread, and
    a RecursionError elsewhere on this one leaves the count wrong (SystemError in `ast.parse`). So do finalizers that
    raise while it counts: no garbage is collected meanwhile."""
    gc.disable()
    try:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(ast.parse, text, feature_version=(3, 9)).result()
    finally:
        gc.enable()


def test_it_is_written_in_the_oldest_python_it_promises_and_imports_nothing_else() -> None:
    tree = parsed(program())
    modules = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    modules |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in modules} <= sys.stdlib_module_names
    assert not modules & {"socket", "ssl", "http.client", "urllib.request", "subprocess", "tomllib"}


@pytest.fixture
async def pack(home: Home, tmp_path: Path) -> Path:
    async with home.context() as context:
        await context.record(accepted("a"))
        await context.record(completed("a"))
        await settled(home)
        await export(context, "acme", tmp_path / "pack.zip", evidence=KNOWN)
    return tmp_path / "pack.zip"


# One of them is enough, and the suite itself runs on one.
@pytest.mark.parametrize("python", [name for name in PYTHONS if found(name)] or [None])
def test_a_pack_holds_under_each_python(pack: Path, python: str | None) -> None:
    there = found(python) if python else None
    if there is None:
        missing("no python3.9 to 3.14 is on the path under its own name")
    with zipfile.ZipFile(pack) as archive:
        archive.extractall(pack.parent / "out")
    command = [there, "-I", "-W", "error", pack.parent / "out" / "verify.py", pack]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "The pack holds." in done.stdout
