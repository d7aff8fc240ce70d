"""The randomised tests in full: every property with many times its usual examples, drawn afresh.

    python bench/suite/campaign.py --factor 25 --out bench/results/campaign-2026-11-28.json

    python bench/suite/campaign.py --factor 26 --out FILE.json tests/audit/test_crash_matrix.py  (1,040 runs)
    python bench/suite/campaign.py --factor 5 --out FILE.json tests/gateway/test_failover.py  (100 failures)
    python bench/suite/campaign.py --factor 32 --out FILE.json tests/gateway/test_side_store_campaign.py  (1,024 calls)
    python bench/suite/campaign.py --factor 9 --out FILE.json tests/audit/test_crash.py  (540 kills a store, commands)
    python bench/suite/campaign.py --factor 25 --jobs 1 --out FILE.json tests/gateway/test_four_hosts.py  (30 minutes)

The ordinary suite runs the same properties, and other tests that draw (marked `campaign`), on a seeded sample. A
failure prints how to reproduce it.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[2]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--factor", type=int, default=25, help="times the examples of an ordinary run")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--timeout", type=int, default=3600, help="seconds that one test may take")
    parser.add_argument("--out", type=Path, help="write the result here as well")
    parser.add_argument("tests", nargs="*", default=["tests"], help="folders or files")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        junit = Path(folder) / "junit.xml"
        began = time.monotonic()
        status = subprocess.run(
            [sys.executable, "-m", "pytest", "-m", "hypothesis or campaign", "-n", str(options.jobs),
             "--timeout", str(options.timeout), f"--junitxml={junit}", *options.tests],
            cwd=ROOT, env={**os.environ, "DOMICILE_CAMPAIGN": str(options.factor)}, check=False,
        ).returncode  # fmt: skip
        suite = ElementTree.parse(junit).getroot().find("testsuite")
    report = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "factor": options.factor,
        "seconds": round(time.monotonic() - began),
        "properties": int(suite.get("tests")),
        "failures": int(suite.get("failures")) + int(suite.get("errors")),
        "tests": [f"{case.get('classname')}::{case.get('name')}" for case in suite.iter("testcase")],
        "examples": sum(int(one.get("value")) for one in suite.iter("property") if one.get("name") == "examples"),
        "seeds": {
            case.get("name"): int(one.get("value"))
            for case in suite.iter("testcase")
            for one in case.iter("property")
            if one.get("name") == "seed"
        },
        "counts": {
            case.get("name"): counts
            for case in suite.iter("testcase")
            if (
                counts := {
                    one.get("name"): int(one.get("value"))
                    for one in case.iter("property")
                    if one.get("name") not in ("examples", "seed")
                }
            )
        },
        "versions": {"python": platform.python_version(), "hypothesis": version("hypothesis")},
    }
    text = json.dumps(report, indent=2)
    if options.out:
        options.out.write_text(text + "\n", encoding="utf-8")
    print(text)
    return status


if __name__ == "__main__":
    sys.exit(main())
