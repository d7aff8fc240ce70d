"""Check an evidence pack, offline: python3 -I verify.py FOLDER_OR_ZIP [--key VKEY] [--checkpoint FILE] [--json]

Needs Python 3.9 or newer and nothing else. Believes nothing in the pack but what the log's key signed; give that key
(--key), a checkpoint that you kept from earlier (--checkpoint) and the key of a witness (--witness), from a place of
your own. Exit code 0 if all holds, 1 if anything does not, 2 if the pack cannot be read. Tables that follow from the
records are made again; the output names the files that are only signed. Formats are described in schema.json and
README.html.

Sources: RFC 6962 (tree), RFC 8785 (canonical JSON), RFC 8032 (Ed25519), RFC 3161 (timestamps), C2SP signed-note,
tlog-checkpoint and tlog-cosignature.
"""

from __future__ import annotations

import argparse
import json
import sys
import zipfile
from pathlib import Path
from typing import Any

from audit.pack_verifier.archive import Pack
from audit.pack_verifier.check import Check


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="verify.py", description="Check an evidence pack, offline.")
    parser.add_argument("pack", help="the zip file, or the folder it was unpacked to")
    parser.add_argument("--key", help="the log's verifier key, from a place of your own")
    parser.add_argument("--checkpoint", action="append", default=[], help="a checkpoint you kept; may be repeated")
    parser.add_argument("--witness", action="append", default=[], help="a witness's verifier key; may be repeated")
    parser.add_argument("--json", action="store_true", help="for machines")
    options = parser.parse_args(arguments)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", errors="replace")  # type: ignore[union-attr]
    try:
        known = [Path(name).read_text(encoding="utf-8") for name in options.checkpoint]
        check = Check(Pack(Path(options.pack)), options.key, known, options.witness)
        check.run()
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        print(
            json.dumps({"ok": False, "error": str(error)})
            if options.json
            else "The pack cannot be read: " + printable(str(error))
        )
        return 2
    report = check.report()
    if options.json:
        print(json.dumps(report, indent=2))
    else:
        tell(report)
    return 0 if report["ok"] else 1


def tell(report: dict[str, Any]) -> None:
    for finding in report["findings"]:
        where = "" if finding["seq"] is None else "record " + str(finding["seq"]) + ": "
        print("FAIL  " + where + printable(finding["says"]))
    if report["faults"] > len(report["findings"]):
        print("FAIL  and " + str(report["faults"] - len(report["findings"])) + " more of the same kinds")
    for note in report["notes"]:
        print("note  " + printable(note))
    if report["only_signed"]:
        print("Recomputed from the records: " + ", ".join(report["recomputed"]))
        print(
            "Only signed, by the holder of the log's key; no record proves their content: "
            + printable(", ".join(report["only_signed"]))
        )
    print(
        str(report["records"])
        + " records of "
        + printable(str(report["tenant"]))
        + ", number "
        + str(report["first"])
        + " and on; private values: "
        + (", ".join(str(count) + " " + state for state, count in sorted(report["fields"].items())) or "none")
    )
    print(
        "The pack holds."
        if report["ok"]
        else "The pack DOES NOT HOLD; keep it as it is, and ask its maker for a new one."
    )


def printable(text: str) -> str:
    return "".join(char if char.isprintable() else "\ufffd" for char in text)


if __name__ == "__main__":
    sys.exit(main())
