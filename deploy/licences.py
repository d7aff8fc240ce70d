"""The licence of every component of a CycloneDX SBOM, as CSV: ``python licences.py SBOM.json OUT.csv``.

Ends with 1, naming them, if components say nothing of a licence: whoever ships them has to know.
"""

import csv
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

LONGEST = 120  # beyond, it is a licence's text, put where its name belongs
CLASSIFIER = "License :: OSI Approved :: "
READ = {"protobuf": "BSD-3-Clause"}
"""Of those whose metadata is silent, as the LICENSE file in their wheel says."""


def licences(component: dict[str, Any]) -> list[str]:
    """SPDX ids or expressions where it gives one, else names."""
    found = []
    for entry in component.get("licenses", ()):
        said = entry.get("expression") or entry.get("license", {}).get("id") or entry.get("license", {}).get("name", "")
        first = said.strip().splitlines()[0].removeprefix(CLASSIFIER) if said.strip() else ""
        if first:
            found.append(first[:LONGEST])
    return sorted(set(found)) or [READ[name] for name in (component["name"],) if name in READ]


def _torch(rows: list[tuple[str, str, str]]) -> str:
    """Which of PyTorch's builds it is about: they differ by gigabytes of CUDA."""
    version = next((version for name, version, _ in rows if name == "torch"), None)
    if version is None:
        return ", without PyTorch"
    cuda = any(name.startswith("nvidia-c") for name, _, _ in rows)
    return f", with PyTorch {version}, the build {'with CUDA' if cuda else 'for CPUs'}"


def main(sbom: Path, out: Path) -> int:
    components = json.loads(sbom.read_text(encoding="utf-8"))["components"]
    rows = sorted((each["name"], each.get("version", ""), " AND ".join(licences(each))) for each in components)
    with out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("component", "version", "licence"))
        writer.writerows(rows)
    silent = [name for name, _, said in rows if not said]
    for said, count in Counter(said for _, _, said in rows if said).most_common():
        print(f"{count:4}  {said}")
    print(f"{len(rows)} components in {out}{_torch(rows)}")
    if silent:
        print("without a licence: " + ", ".join(silent), file=sys.stderr)
    return 1 if silent else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
