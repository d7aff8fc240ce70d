"""The folder of one access request in an evidence pack: for machines (GDPR 20), and for the person (GDPR 12(1), 15)."""

import json
from collections.abc import Mapping
from html import escape
from typing import Any


def dsar_files(package: Mapping[str, Any]) -> dict[str, str]:
    """Of a package as `audit.rights.answer` makes it. What it holds of one person is all that is shown."""
    folder = f"dsar_{package['dsar_id']}"
    return {
        f"{folder}/package.json": json.dumps(package, indent=1, ensure_ascii=False),
        f"{folder}/package.html": _page(package),
    }


def _page(package: Mapping[str, Any]) -> str:
    rows = "".join(
        f"<tr><td>{record['seq']}</td><td>{escape(record['ts'])}</td><td>{escape(str(field))}</td>"
        f"<td><pre>{escape(json.dumps(one['value'], ensure_ascii=False, indent=1))}</pre></td></tr>"
        for record in package["records"]
        for field, one in record["values"].items()
    )
    told = "".join(
        f"<li>{escape(one['operator_entity'])}, in {escape(one['inference_country'])}: {one['calls']} calls</li>"
        for one in package["recipients"]
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>What is kept about you</title>'
        "<style>body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
        "td,th{text-align:left;vertical-align:top;padding:.3rem .6rem;border-bottom:1px solid #ccc}"
        "pre{white-space:pre-wrap;overflow-wrap:anywhere;margin:0}</style></head><body>"
        f"<h1>What is kept about you</h1><p>Controller: {escape(package['tenant'])}. Purposes: "
        f"{escape(', '.join(package['purposes']) or 'see the controller')}. Kept as: "
        f"{escape(', '.join(package['retention']) or 'nothing')}.</p>"
        f"<h2>Who received it</h2><ul>{told or '<li>Nobody.</li>'}</ul>"
        f"<h2>The data</h2><table><tr><th>record</th><th>when</th><th>what</th><th>value</th></tr>{rows}</table>"
        "<h2>Your rights</h2><p>You may ask for correction (GDPR 16), erasure (17), restriction (18), and complain to "
        "a supervisory authority (77).</p></body></html>\n"
    )
