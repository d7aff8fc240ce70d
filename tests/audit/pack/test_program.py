"""verify.py is joined from parts: the same bytes always, one name for one thing, nothing that joining would break."""

import os
import subprocess
import sys
import zipfile
from hashlib import sha256
from pathlib import Path

import pytest

import audit
from audit.pack.export import export
from audit.pack.program import JoinError, join, program
from tests.audit.conftest import KNOWN, Home, accepted
from tests.audit.pack.test_export import settled

TREE = Path(audit.__file__).parents[1]
FOLDER = Path(audit.__file__).parent / "pack_verifier"
PRINTED = "import sys; from audit.pack.program import program; sys.stdout.buffer.write(program())"

TOP = '"""One."""\n\nfrom __future__ import annotations\n\n'
MAIN = '"""All."""\n\nfrom __future__ import annotations\n\nimport sys\n\nfrom audit.pack_verifier.one import one\n\n\n'
PARTS = {
    "one": TOP
    + "import json\nfrom pathlib import Path\n\n# a wish\nWISH = 1\n\n\ndef one() -> int:\n    return WISH\n",
    "__main__": MAIN + "def main() -> int:\n    return one()\n",
}
JOINED = '''#!/usr/bin/env python3
"""All."""

from __future__ import annotations

import json
import sys
from pathlib import Path

# --- one --------------------------------------------------------------------------------------------------------------
# One.

# a wish
WISH = 1


def one() -> int:
    return WISH


# --- the command ------------------------------------------------------------------------------------------------------


def main() -> int:
    return one()
'''


def test_parts_stand_in_the_order_of_their_needs_under_one_head_of_imports() -> None:
    assert join(PARTS) == JOINED
    assert join(dict(reversed(PARTS.items()))) == JOINED


def test_a_part_that_nothing_needs_is_left_out() -> None:
    assert join(PARTS | {"spare": TOP + "SPARE = 1\n"}) == JOINED


def spoilt(part: str, old: str, new: str) -> dict[str, str]:
    assert old in PARTS[part]
    return PARTS | {part: PARTS[part].replace(old, new)}


SPOILT = {
    "circle": (spoilt("one", "import json\n", "from audit.pack_verifier.__main__ import main\n"), "in a circle"),
    "no entry": ({"one": PARTS["one"]}, "no part __main__"),
    "two things of one name": (
        spoilt("__main__", "def main", "WISH = 2\n\n\ndef main"),
        "one and __main__ both define",
    ),
    "the name of a builtin": (spoilt("one", "WISH", "open"), "one defines open"),
    "an imported name": (spoilt("__main__", "def main", "def json"), "json"),
    "the package": (spoilt("__main__", "pack_verifier.one", "pack_verifier"), "by name"),
    "relative": (spoilt("__main__", "audit.pack_verifier.one", ".one"), "by name"),
    "everything": (spoilt("__main__", "import one\n", "import *\n"), "by name"),
    "no part": (spoilt("__main__", "pack_verifier.one", "pack_verifier.two"), "two, which is no part"),
    "ours": (spoilt("__main__", "import sys", "from audit.tree.merkle import leaf_hash"), "audit.tree.merkle"),
    "by path": (spoilt("__main__", "import sys", "import audit.pack_verifier.one"), "audit.pack_verifier.one"),
    "installed": (spoilt("__main__", "import sys", "import cryptography"), "cryptography"),
    "in a function": (spoilt("one", "    return", "    import os\n    return"), "there alone"),
    "below its top": (spoilt("one", "# a wish\n", "X = 1\nimport os\n"), "there alone"),
}


@pytest.mark.parametrize("case", SPOILT)
def test_what_would_not_survive_the_joining_is_refused(case: str) -> None:
    parts, told = SPOILT[case]
    with pytest.raises(JoinError, match=told):
        join(parts)


def test_syntax_that_came_after_python_3_9_is_refused() -> None:
    with pytest.raises(SyntaxError):
        join(spoilt("one", "    return WISH", "    match WISH:\n        case _:\n            return 1"))


def test_every_part_is_in_the_file_once_and_none_of_its_own_imports_is() -> None:
    joined = program().decode()
    for file in sorted(FOLDER.glob("[!_]*.py")):
        assert joined.count(f"\n# --- {file.stem} -") == 1, file.stem
    assert "audit.pack_verifier" not in joined and "from ." not in joined
    assert joined.startswith("#!/usr/bin/env python3\n") and joined.endswith("    sys.exit(main())\n")
    assert joined.count("__main__") == 1


def test_another_process_with_other_hashes_joins_the_same_bytes() -> None:
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", PRINTED], cwd=TREE, env=environment, capture_output=True, check=True
        )
        assert done.stdout == program()


def test_the_file_reads_as_if_we_had_written_it_in_one(tmp_path: Path) -> None:
    (tmp_path / "verify.py").write_bytes(program())
    config = "--config", TREE / "pyproject.toml"
    for command in (["format", "--check"], ["check", "--target-version", "py39"]):
        words = [sys.executable, "-m", "ruff", *command, *config, "--no-cache", tmp_path / "verify.py"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


async def test_a_pack_carries_the_joined_file_and_its_manifest_names_it(home: Home, tmp_path: Path) -> None:
    async with home.context() as context:
        await context.record(accepted("a"))
        await settled(home)
        await export(context, "acme", tmp_path / "pack.zip", evidence=KNOWN)
    with zipfile.ZipFile(tmp_path / "pack.zip") as archive:
        assert archive.read("verify.py") == program()
        assert sha256(program()).hexdigest() in archive.read("manifest.json").decode()
