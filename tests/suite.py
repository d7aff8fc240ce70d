"""``python -m tests.suite ARGUMENTS``: pytest with these arguments, then the few tests that failed once more, alone.

Of fifteen thousand tests some start processes and databases beside each other; about once in a run one of them fails on
a busy machine and not by itself. Such a test is named at the end, for it is to be mended. The run fails where a test
fails twice, where more than `AGAIN` fail, or where pytest itself breaks.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

AGAIN = 5
FAILED = 1  # pytest.ExitCode.TESTS_FAILED
LAST_FAILED = Path(".pytest_cache/v/cache/lastfailed")


def pytest(arguments: Sequence[str]) -> int:
    if os.environ.get(
        "CI"
    ):  # Python's own tracebacks: CPython 3.11 may crash where pytest parses sources beside threads
        arguments = ["--tb=native", *arguments]
    return subprocess.run([sys.executable, "-m", "pytest", *arguments], check=False).returncode


def main(arguments: Sequence[str]) -> int:
    """The status to exit with: pytest's."""
    LAST_FAILED.unlink(missing_ok=True)
    status = pytest(arguments)
    failed = sorted(json.loads(LAST_FAILED.read_text(encoding="utf-8"))) if LAST_FAILED.exists() else []
    if status != FAILED or not 0 < len(failed) <= AGAIN:
        return status
    print(f"== once more, alone: {len(failed)} that failed", flush=True)
    if (again := pytest(["-n", "0", "-q", *failed])) != 0:
        return again
    for one in failed:
        print(f"FAILED AT FIRST, passed alone; to be mended: {one}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
