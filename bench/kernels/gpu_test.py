"""Run on a GPU what runs interpreted or on the twins elsewhere: kernels, fused decoder, the runner that works ahead.

    python bench/kernels/gpu_test.py bench/results/gpu-test-h100.json
    python bench/kernels/gpu_test.py bench/results/gpu-test-h200-x2.json --cards 2

With several cards, what runs on several: groups, divided models and engines.

Writes how each test went. Ends with pytest's exit status. What looks at the card's memory runs by itself, at the end.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

from bench.kernels.gpu_check import machine  # noqa: E402

SUITES = [
    "tests/backend/kernels",
    "tests/backend/quantization",
    "tests/backend/models/adapters",
    "tests/backend/models/decoders/test_fused_decoder.py",
    "tests/backend/models/decoders/test_mixture.py",
    "tests/backend/models/decoders/test_latent_decoder.py",
    "tests/backend/models/decoders/test_variant_decoder.py",
    "tests/backend/engine/gpu/test_graph_runner.py",
    "tests/backend/engine/gpu/test_gpt_oss.py",
    "tests/backend/engine/gpu/test_deepseek.py",
    "tests/backend/engine/cache/test_pinned_pages.py",
    "tests/backend/engine/gpu/test_apart.py",
    "tests/backend/engine/cache/test_pages.py",
    "tests/backend/engine/test_batch_invariance.py",
    "tests/backend/engine/test_activations.py",
    "tests/backend/engine/test_adapters.py",
    "tests/backend/engine/embedding/test_gpu_pooling.py",
    "tests/backend/engine/gpu/test_device_tables.py",
    "tests/backend/engine/test_families_ahead.py",
    "tests/backend/engine/test_mixture_ahead.py",
    "tests/backend/engine/test_guided.py",
    "tests/backend/engine/test_oracle_ahead.py",
    "tests/backend/engine/gpu/test_paged_layers.py",
    "tests/backend/engine/core/test_h2d.py",
    "tests/backend/engine/drafting/test_head_drafter.py",
    "tests/backend/engine/drafting/test_model_drafter.py",
    "tests/backend/engine/test_marks.py",
    "tests/backend/engine/test_windows.py",
    "tests/backend/models/decoders/test_exposure.py",
]
ALONE = [
    "tests/backend/engine/gpu/test_start.py",
    "tests/backend/engine/embedding/test_gpu_start.py",
    "tests/backend/engine/gpu/test_sleeper.py",
    "tests/backend/test_faults.py",
    "tests/backend/process/test_gpu_meter.py",
]

DIVIDED = [
    "tests/backend/process/test_ranks.py",
    "tests/backend/parallel",
    "tests/backend/models/decoders/test_sharded_decoder.py",
]

WHY = 600  # characters of what a failure says


def main(out: Path, cards: int) -> int:
    if cards > 1:
        begin = time.monotonic()
        status = 0
        tests: list[dict[str, Any]] = []
        for suite in DIVIDED:  # one after another, for each takes all cards, and what is written stays if one hangs
            now, found = run(["-v", "-x", suite])
            status, tests = status or now, tests + found
            write(out, tests, status, begin)
        return status
    parallel = ["-n", str(min(12, os.cpu_count() or 1))] if importlib.util.find_spec("xdist") else []
    begin = time.monotonic()
    status, tests = run([*parallel, *SUITES])
    write(out, tests, status, begin)  # should the rest not come to its end
    alone, others = run(ALONE)
    write(out, tests + others, status or alone, begin)
    return status or alone


def write(out: Path, tests: list[dict[str, Any]], status: int, begin: float) -> None:
    counts = {kind: sum(t["outcome"] == kind for t in tests) for kind in ("passed", "failed", "skipped")}
    taken = round(time.monotonic() - begin, 1)
    report = {"machine": machine(), "exit": status, "seconds": taken, **counts, "tests": tests}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(report, indent=1) + "\n")
    print(counts, f"-> {out}")


def run(arguments: list[str]) -> tuple[int, list[dict[str, Any]]]:
    """pytest's exit status, and how each test went."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    # Not the project's configuration, nor the suite's conftest: they ask for plugins that a bare GPU machine lacks.
    command = [
        sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", str(ROOT), "-p", "no:cacheprovider",
        "--confcutdir", str(ROOT / "tests" / "backend"),
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        xml = Path(folder) / "tests.xml"
        done = subprocess.run(
            [*command, "--junitxml", str(xml), *arguments], cwd=ROOT, env=os.environ | {"PYTHONPATH": path}, check=False
        )
        tests = [outcome(case) for case in ElementTree.parse(xml).iter("testcase")] if xml.exists() else []
    return done.returncode, tests


def outcome(case: ElementTree.Element) -> dict[str, Any]:
    kinds = {"failure": "failed", "error": "failed", "skipped": "skipped"}
    found = [(kinds[child.tag], child.get("message") or "") for child in case if child.tag in kinds]
    told = {"why": found[0][1].replace(f"{ROOT}/", "")[:WHY]} if found else {}  # the report is committed
    return {
        "name": f"{case.get('classname')}::{case.get('name')}",
        "outcome": found[0][0] if found else "passed",
        "seconds": float(case.get("time") or 0),
        **told,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--cards", type=int, default=1)
    options = parser.parse_args()
    sys.exit(main(options.out, options.cards))
