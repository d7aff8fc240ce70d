"""The folder of one access request in an evidence pack: for machines (GDPR 20), and for the person in each language
that the product speaks (GDPR 12(1), 15)."""

import json
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from typing import Any

from audit.registers.language import ENGLISH, LANGUAGES, Language
from audit.registers.ropa import ADDRESSES, METADATA

STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "td,th{text-align:left;vertical-align:top;padding:.3rem .6rem;border-bottom:1px solid #ccc}"
    "pre{white-space:pre-wrap;overflow-wrap:anywhere;margin:0;font:inherit}"
)


def dsar_files(package: Mapping[str, Any]) -> dict[str, str]:
    """Files of a package as `audit.privacy.rights.answer` makes it. Only data of one person is shown."""
    folder = f"dsar_{package['dsar_id']}"
    pages = {f"{folder}/package_{code}.html": access_page(package, one) for code, one in LANGUAGES.items()}
    return {f"{folder}/package.json": json.dumps(package, indent=1, ensure_ascii=False), **pages}


def access_page(package: Mapping[str, Any], language: Language = ENGLISH) -> str:
    """The package as a page for the person: what Article 15(1) lists, then the data."""
    about = package["article_15"]
    missing = (
        f"<p>{_text(language.missing.format('; '.join(map(language.entry, about['missing']))))}</p>"
        if about["missing"]
        else ""
    )
    return page(
        language,
        language.title_access,
        [*party(language, about["controller"], package["tenant"]), *_letters(language, about), missing],
        _data(language, package["records"], package.get("content", ())),
    )


def _letters(language: Language, about: Mapping[str, Any]) -> Iterator[str]:
    yield section(language.purposes, (_purpose(language, one) for one in about["a_purposes"]), language.unknown)
    yield section(language.categories, map(language.kind, about["b_categories"]), language.unknown)
    told = (
        language.recipient.format(one["operator_entity"], one["inference_country"], one["calls"])
        for one in about["c_recipients"]
    )
    yield section(language.recipients, told, language.nobody)
    yield section(language.periods, (period(language, **one) for one in about["d_periods"]), language.unknown)
    yield section(language.rights, (*language.rights_text, language.complaint), "")
    yield section(language.source, about["g_source"], language.source_unknown)
    yield section(language.automated, automated(language, about["h_automated_decisions"]["ai_systems"]), "")
    routes = [
        language.transfer.format(one["computed_in"], one["stored_in"], language.tool(one["tool"]))
        for one in about["2_transfers"]
    ]
    known = (
        language.safeguards.format(one["operator"], language.tool(one["basis"]), one["reference"])
        for one in about["2_safeguards"]
    )
    stores = [language.stored_outside.format(language.place(one["name"]), one["country"]) for one in about["2_stores"]]
    none = language.no_transfer if about["c_recipients"] else language.no_call
    yield section(language.transfers, [*routes, *stores, *known], none)


def _purpose(language: Language, one: Mapping[str, str]) -> str:
    basis = f" ({language.legal_basis}: {language.basis(one['legal_basis'])})" if one["legal_basis"] else ""
    return f"{one['purpose'] or one['activity']}{basis}"


def _data(language: Language, records: Iterable[Mapping[str, Any]], content: Iterable[Mapping[str, Any]] = ()) -> str:
    rows = "".join(
        f"<tr><td>{record['seq']}</td><td>{_text(record['ts'])}</td><td>{_text(language.field(name))}</td>"
        f"<td><pre>{_text(readable(one['value'], language))}</pre></td></tr>"
        for record in records
        for name, one in record["values"].items()
    )
    rows += "".join(
        f"<tr><td>{_text(_place(one))}</td><td>{_text(one['created'])}</td><td>{_text(language.content_kind(one['kind']))}</td>"
        f"<td><pre>{_text(readable(one['value'], language))}</pre></td></tr>"
        for one in content
    )
    heads = "".join(
        f"<th>{_text(name)}</th>" for name in (language.record, language.when, language.what, language.value)
    )
    body = f"<table><tr>{heads}</tr>{rows}</table>" if rows else f"<p>{_text(language.no_data)}</p>"
    return f"<h2>{_text(language.data)}</h2>{body}"


def _place(one: Mapping[str, Any]) -> str:
    return one["id"] if one["line"] is None else f"{one['id']}, {one['line']}"


# --- what notices share with it --------------------------------------------------------------------------------------


def page(language: Language, title: str, sections: Iterable[str], body: str = "") -> str:
    """A whole page without scripts; `sections` and `body` are markup."""
    return (
        f'<!doctype html>\n<html lang="{language.code}"><head><meta charset="utf-8"><title>{_text(title)}</title>'
        f"<style>{STYLE}</style></head><body><h1>{_text(title)}</h1>{''.join(sections)}{body}</body></html>\n"
    )


def section(title: str, items: Iterable[str], empty: str) -> str:
    """A heading with a list of sentences, or with `empty`."""
    lines = "".join(f"<li>{_text(item)}</li>" for item in items)
    return f"<h2>{_text(title)}</h2>" + (f"<ul>{lines}</ul>" if lines else f"<p>{_text(empty)}</p>")


def party(language: Language, told: Mapping[str, str], fallback: str) -> Iterator[str]:
    """Name, address and contacts of the controller (GDPR 13(1)(a), (b)); a name that is not registered is the id."""
    place = ", ".join(told[name] for name in ("name", "address", "country") if told[name])
    yield f"<p>{_text(language.controller)}: {_text(place or fallback)}</p>"
    for label, name in ((language.contact, "contact"), (language.dpo, "dpo")):
        yield f"<p>{_text(label)}: {_text(told[name] or language.unknown)}</p>"
    if told["representative"]:
        yield f"<p>{_text(language.representative)}: {_text(told['representative'])}</p>"


def period(language: Language, kind: str, days: int) -> str:
    if kind == ADDRESSES:
        return language.addresses.format(days)
    if kind == METADATA:
        return language.metadata.format(days)
    return language.content.format(days) if days else language.content_none


def automated(language: Language, systems: Iterable[str]) -> list[str]:
    named = ", ".join(systems)
    return [*([language.automated_systems.format(named)] if named else ()), language.automated_text]


def readable(value: Any, language: Language = ENGLISH) -> str:
    """Text as text, a conversation as its turns, anything else as JSON. Prompts are kept as the JSON that was sent."""
    if isinstance(value, str):
        read = _json(value)
        return value if read is None else readable(read, language)
    told = _readable_object(value, language) if isinstance(value, dict) else None
    if told is not None:
        return told
    if isinstance(value, list) and value and all(isinstance(one, dict) and _SPEAKS & set(one) for one in value):
        return "\n".join(readable(one, language) for one in value)
    return json.dumps(value, ensure_ascii=False, indent=1)


def _readable_object(value: Mapping[str, Any], language: Language) -> str | None:
    """A call, a message or a part of one, or the measure of a text; None for anything else."""
    if isinstance(value.get("messages"), list):
        return readable(value["messages"], language)
    if isinstance(value.get("content"), str | list):
        role = str(value.get("role", ""))
        who = f"{language.speakers.get(role, role)}: " if role else ""
        return f"{who}{readable(value['content'], language)}"
    if isinstance(value.get("text"), str):
        return str(value["text"])
    if value.keys() == {"bytes", "sha256"}:
        return language.measure.format(value["bytes"], value["sha256"])
    return None


_SPEAKS = frozenset(("content", "text"))
"""Keys of a message and of a part of one."""


def _json(text: str) -> dict[str, Any] | list[Any] | None:
    """The object or list that the text is; None for any other text."""
    if not text.startswith(("{", "[")):
        return None
    try:
        read = json.loads(text)
    except ValueError:
        return None
    return read if isinstance(read, dict | list) else None


def _text(value: str) -> str:
    return escape(str(value))
