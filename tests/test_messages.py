"""Every message that reaches a person has the form ``<what>; <how to fix it>``: a walk over the raise sites.

A site is a raised message with literal text, a log line from `warning` on, or a call of a command's `fail`. Its remedy
stands in the text, after ``; ``, or in its error class, as `fix`, for all messages of the class.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("audit", "backend", "gateway", "policy", "regions")
LOGGED = frozenset({"warning", "error", "exception", "critical"})
FAILING = frozenset({"fail", "_fail"})
SPEAKS = re.compile(r"raise [\w.]+\(|\b_?fail\(|\.(?:warning|error|exception|critical)\(|(?:Error|Exception)\):$", re.M)
"""In every file that has a site or an error class; the others are not parsed."""

# Classes whose messages need no remedy of their own, and why.
EXEMPT = {
    "wrong_format": "it words the remedy itself",
    "refused": "it is given the remedy apart, and joins the two",
    "AssertionError": "no input reaches it",
    "NotImplementedError": "no input reaches it",
    "RuntimeError": "a programming error; only its class is logged",
    "CanonicalError": "its base FormError: the caller knows where the value is from and names the remedy",
    "CommitmentError": "as CanonicalError",
    "NoteError": "as CanonicalError",
    "ProofError": "as CanonicalError",
    "ProxyHeaderError": "the log line that it ends in names the remedy",
    "Broken": "a finding of a pack's verifier, whose last line says what to do",
    "JoinError": "of the build of a pack's verifier",
    "LooseningError": "its constructor names the rule to tighten",
    "EOFError": "internal to the gateway's worker processes",
    "Interrupted": "tried again; the FetchError that it ends in names the remedy",
    "Failure": "of the process that talks to an HSM; its client adds the remedy",
    "SSLError": "a programming error: the wrong kind of socket",
}

# Messages by file and beginning that need none, and why.
EXEMPT_SITES = {
    "audit/events/leaf.py": {"the event ": "ends with a CanonicalError; no input of a client reaches it"},
    "audit/events/private_value.py": {"the value for ": "as in leaf.py"},
    "audit/log/audit_log.py": {"the audit log cannot be opened: ": "ends with an error that names the remedy"},
    "audit/storage/postgres_watch.py": {"": "`_put_back` adds the remedy"},
    "audit/storage/watched.py": {"the databases are again": "reports that a trouble is over"},
    "audit/pack_verifier/canonical.py": {"": "a finding, as Broken"},
    "audit/pack_verifier/note.py": {"that is not the key of a witness": "a finding, as Broken"},
    "audit/pack_verifier/timestamp.py": {"": "a finding, as Broken"},
    "backend/fetch/model_manifest.py": {
        "names of files that": "becomes a FetchError",
        "sha256 is not that": "as above",
    },
    "backend/kernels/launching/tuning.py": {"no candidate for ": "a developer's tool", "these choices ": "as above"},
    "backend/process/gpu_meter.py": {"no metrics of the card: ": "the meter is optional; the reason is NVML's"},
    "backend/process/supervision.py": {"the engine was restarted": "reports that a trouble is over"},
    "backend/server/request_lock.py": {"not base64url": "becomes a TokenRefused"},
    "gateway/configuration/settings.py": {"{path or 'settings'}": "ends with the value's error, which names it"},
    "gateway/content/prompt.py": {"The request could not be inspected": "ends with a RedactionError"},
    "gateway/database/tables/control.py": {"a datetime without": "a programming error"},
    "gateway/limits/limiter.py": {"a cost is": "a programming error"},
    "gateway/openai/answer_formats.py": {"not ": "becomes a BackendFailed"},
    "gateway/openai/repeated_chunk.py": {"a member is there twice": "is handled by reading the chunk in full"},
    "gateway/server/proxies/forwarded.py": {"not ": "leaves the client unknown; nobody is told"},
    "gateway/server/serve.py": {"{named}: {reason}": "`reason` names the remedy"},
    "policy/redact/ids/kinds.py": {"": "of the package's own tables"},
    "policy/redact/names/int8_weights.py": {"": "becomes a RedactionError"},
    "policy/redact/payment/vat_kinds.py": {"": "of the package's own tables"},
    "policy/redact/request.py": {"{position}": "the name of the place; the hint beside it has the remedy"},
    "regions/launchers/kubernetes.py": {"%s: %s": "the second part is an error that names the remedy"},
}


class Site(NamedTuple):
    file: str
    line: int
    kind: str
    """Name of the error class, or of the function that logs or ends the command."""
    text: str
    names_remedy: bool
    """``; `` is in the literal text, or the last part is what `invalid_value` says of a value."""


@cache
def trees() -> dict[str, ast.Module]:
    files = (file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py")))
    sources = ((str(file.relative_to(ROOT)), file.read_text(encoding="utf-8")) for file in files)
    return {name: ast.parse(source) for name, source in sources if SPEAKS.search(source)}


def text_of(node: ast.expr) -> str | None:
    """The text with ``{...}`` for what is put in; None for an expression without literal text."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(text_of(part) or f"{{{ast.unparse(part.value)}}}" for part in parts)  # type: ignore[attr-defined]
        case ast.BinOp(op=ast.Add(), left=left, right=right):
            pieces = text_of(left), text_of(right)
            return None if pieces == (None, None) else "".join(piece or "{...}" for piece in pieces)
        case ast.IfExp(body=body, orelse=otherwise):
            found = [text for each in (body, otherwise) if (text := text_of(each))]
            return min(found, key=lambda text: "; " in text, default=None)
    return None


def sites(file: str, tree: ast.Module) -> Iterator[Site]:
    for node in ast.walk(tree):
        call = node.exc if isinstance(node, ast.Raise) else node if isinstance(node, ast.Call) else None
        if not isinstance(call, ast.Call):
            continue
        kind = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        if call is node and kind not in LOGGED | FAILING:
            continue
        if call is node and kind in LOGGED and not isinstance(call.func, ast.Attribute):
            continue
        given = [*call.args, *(each.value for each in call.keywords if each.arg in ("message", "because", "says"))]
        for text in filter(None, map(text_of, given[:3])):
            if " " in text:
                yield Site(file, call.lineno, kind, text, "; " in text or text.endswith("{invalid_value(first)}"))


@cache
def classes_with_remedy() -> set[str]:
    """Names of the error classes whose messages end with the remedy of the class, their own or a base's."""
    bases: dict[str, set[str]] = {}
    found: set[str] = set()
    for tree in trees().values():
        for node in tree.body:
            if not isinstance(node, ast.ClassDef):
                continue
            bases.setdefault(node.name, set()).update(base.id for base in node.bases if isinstance(base, ast.Name))
            for each in node.body:
                match each:
                    case ast.Assign(targets=[ast.Name(id="fix")], value=ast.Constant(value=str(remedy))) if remedy:
                        found.add(node.name)
    while more := {name for name, above in bases.items() if above & found} - found:
        found |= more
    return found


def is_exempt(site: Site) -> bool:
    return site.kind in EXEMPT or any(map(site.text.startswith, EXEMPT_SITES.get(site.file, ())))


@cache
def all_sites() -> list[Site]:
    return [site for file, tree in trees().items() for site in sites(file, tree)]


def test_every_message_for_a_person_names_its_fix():
    known = classes_with_remedy()
    lacking = [
        f"{site.file}:{site.line}: {site.kind}: {site.text}"
        for site in all_sites()
        if not (site.names_remedy or site.kind in known or is_exempt(site))
    ]
    assert lacking == [], "write <what>; <how to fix it>:\n" + "\n".join(lacking)


def test_each_exemption_is_needed():
    """So that an exemption does not outlive its message."""
    exempt = [site for site in all_sites() if not site.names_remedy]
    kinds = {site.kind for site in exempt}
    assert {name for name in EXEMPT if name not in kinds} == set()
    for file, beginnings in EXEMPT_SITES.items():
        for beginning in beginnings:
            assert any(site.file == file and site.text.startswith(beginning) for site in exempt), (file, beginning)


@pytest.mark.parametrize(
    "source",
    [
        'raise StoreError("the file is empty")',
        'raise StoreError(f"the file {name} is empty")',
        'raise StoreError("the file " + name)',
        'raise StoreError("the file is empty" if empty else "the file is torn; restore it")',
        'raise StoreError(code, "the file is empty")',
        'raise errors.StoreError(message="the file is empty")',
        'fail("the file is empty")',
        'log.warning("the file is empty: %s", name)',
    ],
)
def test_a_message_without_a_fix_is_found(source):
    (site,) = sites("audit/new.py", ast.parse(source))
    assert not site.names_remedy and not is_exempt(site) and site.kind not in classes_with_remedy()


@pytest.mark.parametrize(
    "source",
    [
        'raise StoreError("the file is empty; restore it")',
        'raise StoreError(f"the file {name} is empty; restore it")',
        'fail(f"{name}: {invalid_value(first)}")',
        'log.info("the file is read")',
        'typer.echo("the file is read")',
        "raise StoreError(error)",
    ],
)
def test_a_message_with_a_fix_and_one_that_is_no_error_are_not_found(source):
    assert all(site.names_remedy for site in sites("audit/new.py", ast.parse(source)))
