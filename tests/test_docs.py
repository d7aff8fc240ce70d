"""The documents are true: what they show is run, what there is they name, where they point there is something.

``python -m tests.test_docs`` brings the list of modules in docs/modules.md up to date.
"""

import ast
import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from pydantic import BaseModel

from gateway import errors
from gateway.apis.endpoints import ENDPOINTS
from gateway.batches.routes import BatchRoutes
from gateway.cli.app import app
from gateway.configuration.settings import Settings
from gateway.request.telemetry import STEPS
from gateway.responses.routes import ResponseRoutes
from gateway.server import connection
from gateway.store.control.models import named
from tests.fakes.backend import FakeBackend
from tests.fakes.lab import OPEN_POLICY, POLICY, chat, lab
from tests.gateway.batches.test_metrics import METRICS as BATCH_METRICS
from tests.gateway.request.test_telemetry import METRICS

TREE = Path(__file__).parents[1]
DOCUMENTS = sorted([*TREE.glob("*.md"), *(TREE / "docs").rglob("*.md")])
PACKAGES = ("gateway", "regions", "policy", "audit", "backend")
BEGIN, END = "<!-- modules: begin -->\n", "<!-- modules: end -->"
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def read(place):
    return (TREE / place).read_text(encoding="utf-8")


def rows(place):
    """Every row of a document's tables, by cells."""
    lines = [line for line in read(place).splitlines() if line.startswith("|") and not line.startswith("|---")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


# --- docs/architecture.md and docs/modules.md -------------------------------------------------------------------------


def docstring(file):
    return ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""


def module_list():
    """Each package with what its docstring says, and the first line of each of its modules."""
    lines = []
    for top in PACKAGES:
        lines.append(f"\n## {top}\n")
        for init in sorted((TREE / top).rglob("__init__.py")):
            folder = init.parent
            if folder.parent != TREE:
                lines.append(f"\n### {folder.relative_to(TREE)}\n")
            lines.append(f"\n{docstring(init)}\n\n")
            modules = (file for file in sorted(folder.glob("*.py")) if file != init)
            lines += [f"- `{file.name}`: {docstring(file).splitlines()[0]}\n" for file in modules]
    return "".join(lines) + "\n"


def with_module_list(text):
    before, rest = text.split(BEGIN)
    return before + BEGIN + module_list() + END + rest.split(END)[1]


def test_every_module_is_listed_with_its_first_line():
    text = read("docs/modules.md")
    assert text == with_module_list(text), "run `python -m tests.test_docs`"
    assert text.count("\n### gateway/") > 10
    assert "\n- `pipeline.py`: " in text


def test_every_decision_record_has_number_status_and_date_and_is_in_the_index():
    index = {row[0]: row[1:] for row in rows("docs/adr/README.md")[1:]}
    records = sorted((TREE / "docs/adr").glob("0*.md"))
    assert len(records) == len(index)
    for record in records:
        number = int(record.name[:4])
        title, _, status, *_ = record.read_text(encoding="utf-8").splitlines()
        told, state, date = index[f"[{number}]({record.name})"]
        assert title == f"# {number}. {told}"
        assert status == f"Status: {state}. Date: {date}."
        assert re.fullmatch(r"accepted|superseded by \d+", state)
        assert re.fullmatch(r"20\d\d-\d\d-\d\d", date)


def test_a_term_is_defined_once_in_one_line():
    terms = [row[0] for row in rows("docs/glossary.md")[1:]]
    assert terms == sorted(set(terms), key=str.casefold)
    assert all(len(row) == 2 and row[1] for row in rows("docs/glossary.md"))


def test_the_numbered_steps_are_those_of_the_pipeline_in_its_order():
    told = re.findall(r"^(\d+)\. \*\*(\w+)\*\*", read("docs/architecture.md"), re.MULTILINE)
    assert told == [(str(number), step) for number, step in enumerate(STEPS, 1)]
    assert re.findall(r"  # (\d+)\. (\w+)", read("gateway/request/pipeline.py")) == told


# --- docs/configuration.md -------------------------------------------------------------------------------------------


def keys(model=Settings, path=()):
    """Every key a configuration may have, with its default."""
    for name, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from keys(inner, (*path, name))
        elif name == "prices":
            for price in inner.__args__[1].model_fields:
                yield f"prices.MODEL.{price}", None
        else:
            yield ".".join((*path, name)), None if field.default_factory else field.default


def test_every_configuration_key_is_documented_with_its_default_and_variable_and_no_other():
    told = {row[0].strip("`"): row[1:] for row in rows("docs/configuration.md") if row[0].startswith("`")}
    assert told.keys() == dict(keys()).keys()
    for key, default in keys():
        shown, meaning, variable = told[key]
        assert meaning
        if key.startswith("prices"):
            continue
        assert variable == f"`DOMICILE__{key.upper().replace('.', '__')}`"
        assert shown == {"node": "the host's name"}.get(key, "" if default is None else f"`{_yaml(default)}`")


def _yaml(value):
    return str(value).lower() if isinstance(value, bool) else str(value)


def test_a_documented_variable_sets_its_key(monkeypatch):
    monkeypatch.setenv("DOMICILE__REQUESTS__BODY_TIMEOUT_S", "7")
    monkeypatch.setenv("DOMICILE__NODE", "gw-9")
    assert (Settings().requests.body_timeout_s, Settings().node) == (7, "gw-9")


# --- docs/api.md -----------------------------------------------------------------------------------------------------


def codes_in_source():
    """Every code that the gateway gives an error, from class bodies and from ``code=`` of what is raised."""
    found = set()
    for file in (TREE / "gateway").rglob("*.py"):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and _name(node.func) in ERRORS:
                found |= {text for k in node.keywords if k.arg == "code" for text in _strings(k.value)}
            if isinstance(node, ast.Assign) and [_name(target) for target in node.targets] == ["code"]:
                found |= set(_strings(node.value))
    return found


def _name(node):
    return getattr(node, "id", getattr(node, "attr", None))


def _strings(node):
    """The texts that an expression may come to."""
    if isinstance(node, ast.IfExp):
        return [*_strings(node.body), *_strings(node.orelse)]
    return [node.value] if isinstance(node, ast.Constant) and isinstance(node.value, str) else []


def _kinds(base=errors.GatewayError):
    return {base.__name__: base} | {n: k for below in base.__subclasses__() for n, k in _kinds(below).items()}


ERRORS = _kinds()


def test_every_error_code_is_documented_with_its_status_and_no_other():
    told = {}
    for status, codes, *_ in (row for row in rows("docs/api.md") if row[0].isdigit()):
        told |= dict.fromkeys(re.findall(r"`([a-z_]+)`", codes), int(status))
    named = codes_in_source() | {"expired_api_key", "revoked_api_key"}
    named |= {each.code for each in vars(connection).values() if isinstance(each, connection.Refusal)}
    assert {"redaction_blocked", "no_certificate", "body_timeout", "invalid_json"} <= named, "the source is searched"
    assert told.keys() == named | {kind.code for kind in ERRORS.values() if kind.code}
    for kind in ERRORS.values():
        assert kind.code is None or told[kind.code] == kind.status


BODIES = {
    "/v1/responses": {"model": "small", "input": "hi"},
    "/v1/messages": chat("hi", max_tokens=8),
    "/v1/messages/count_tokens": chat("hi"),
    "/v1/tokenize": {"model": "small", "prompt": "hi"},
    "/v1/detokenize": {"model": "small", "tokens": [1]},
    "/v1/rerank": {"model": "small", "query": "hi", "documents": ["ho"]},
    "/v1/score": {"model": "small", "text_1": "hi", "text_2": "ho"},
    "/api/chat": chat("hi"),
    "/api/generate": {"model": "small", "prompt": "hi"},
    "/api/embed": {"model": "small", "input": "hi"},
    "/api/show": {"model": "small"},
}
"""Of routes that refuse members of other routes."""


async def test_every_path_is_documented_and_answers_and_no_other_is_in_the_application(tmp_path):
    told = {tuple(row[0].strip("`").split()) for row in rows("docs/api.md") if re.match("`[A-Z]+ /", row[0])}
    sources = read("gateway/server/app.py") + read("gateway/offers/routes.py")
    routed = {path.replace(":path", "") for path in re.findall(r'Route\("([^"]+)"', sources)}
    of_batches = {
        (method, route.path)
        for route in BatchRoutes(None, None, None, None).routes()
        for method in route.methods - {"HEAD"}
    }
    of_responses = {
        (method, route.path) for route in ResponseRoutes(None, None).routes() for method in route.methods - {"HEAD"}
    }
    assert of_batches | of_responses <= told, "their own tests call them"
    told -= of_batches | of_responses
    assert {path for _, path in told} == routed | {endpoint.path for endpoint in ENDPOINTS}
    async with lab(tmp_path, set_up=lambda made: made.tenant("acme", OPEN_POLICY)) as made:
        for method, path in told:
            body = BODIES.get(path, chat("hi", prompt="hi", input="hi")) if method == "POST" else None
            answer = await (made.post(body, path) if body else made.get(path.replace("{model}", "small")))
            assert answer.status == 200, path
        assert (await made.get("/v1/assistants")).error["code"] == "unknown_url"


def test_every_metric_is_documented_with_its_labels_and_no_other():
    told = {row[0].strip("`"): row[1] for row in rows("docs/api.md") if re.match("`(domicile|gen_ai)_", row[0])}
    metrics = METRICS | BATCH_METRICS | {"domicile_webhook_deliveries_total": {"webhook", "outcome"}}
    assert told.keys() == {name.removesuffix("_count") for name in metrics}
    for name, labels in metrics.items():
        shown = told[name.removesuffix("_count")]
        assert set(re.findall(r"`(\w+)`", shown)) == labels or "the same" in shown


async def test_every_header_of_an_answer_is_documented_and_every_documented_one_comes(tmp_path):
    told = {
        row[0].strip("`") for row in rows("docs/api.md") if re.match("`(x-|retry|www|deprecation|sunset|link)", row[0])
    }
    ours = {"content-type", "content-length", "cache-control", "x-accel-buffering", "date", "transfer-encoding"}
    seen = set()
    backend = FakeBackend()

    def set_up(made):
        made.tenant("acme", POLICY + "limits: {rpm: 100, tpm: 100000}\n")

    async with lab(tmp_path, backends={"acme/eu-fr-par/acme-1": backend}, set_up=set_up) as made:
        notice = {"deprecated_at": "2026-11-01T00:00:00Z", "sunset_at": "2027-11-01T00:00:00Z", "replacement": "small"}
        made.control.create_model_name("acme", "main", "old", named(targets=["small"], **notice))
        await made.taken_over()
        for answer in (
            await made.post(chat("hi")),
            await made.post({**chat("hi"), "model": "old"}),
            await made.post(chat("hi", max_tokens=200000)),
            await made.post(chat("hi", stream=True)),
            await made.post(chat("hi"), key="sk-wrong"),
            await made.post({**chat("hi"), "model": "nobody"}),
        ):
            seen |= {name.lower() for name in answer.headers}
        backend.status, backend.error = 503, {"message": "no"}
        seen |= {name.lower() for name in (await made.post(chat("hi"))).headers}
    marked = {f"x-domicile-{each}" for each in ("watermark", "fingerprint", "manifest")}  # each has tests of its own
    assert seen - ours == told - marked


# --- README.md and all of them ---------------------------------------------------------------------------------------


def commands(command=None, path=("domicile",)):
    command = command or typer.main.get_command(app)
    for name, below in getattr(command, "commands", {}).items():
        yield (*path, name)
        yield from commands(below, (*path, name))


def test_every_top_level_command_is_in_the_readme_and_no_document_names_one_that_is_not_there():
    known = set(commands())
    told = " ".join(row[0] for row in rows("README.md")) + read("docs/configuration.md")
    for top in {path[1] for path in known}:
        assert re.search(rf"[` ]{top}[`, ]", told), top
    for document in DOCUMENTS:
        for said in re.findall(r"`domicile ([a-z]+)(?: ([a-z][a-z-]*))?[^`]*`", document.read_text(encoding="utf-8")):
            below = {path[2] for path in known if path[1] == said[0] and len(path) > 2}
            assert ("domicile", said[0]) in known, (document.name, said)
            assert not said[1] or not below or said[1] in below, (
                document.name,
                said,
            )


def anchors(text):
    """The anchors of a document's headings, as code forges make them."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: str(d.relative_to(TREE)))
def test_links_between_documents_lead_somewhere(document):
    text = FENCE.sub("", document.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\((?!https?:|mailto:)([^)\s]+)\)", text):
        place, _, anchor = target.partition("#")
        file = (document.parent / place).resolve() if place else document
        assert file.exists(), target
        assert TREE in file.parents, target
        assert not anchor or anchor in anchors(file.read_text(encoding="utf-8")), target


DEMO_BASE, DEMO_MODEL = "http://127.0.0.1:8400", "smollm2-135m"


def blocks(language):
    return [block for kind, block in FENCE.findall(read("README.md")) if kind == language]


async def test_what_the_readme_shows_works_when_pasted(tmp_path):
    """The model, the address and the folder are the lab's; nothing else of the blocks is changed."""
    said = "Rain falls on Paris."
    async with lab(tmp_path, backends={"acme/eu-fr-par/acme-1": FakeBackend(model=DEMO_MODEL, say=said)}) as made:
        environment = os.environ | {
            "DOMICILE_KEY": made.key(), "DOMICILE_DATA": str(made.data), "PYTHONPATH": str(TREE),
        }  # fmt: skip
        domicile = f"domicile() {{ '{sys.executable}' -m gateway \"$@\"; }}\n"

        async def paste(*command):
            return await asyncio.to_thread(
                subprocess.run, command, env=environment, capture_output=True, text=True, timeout=60, check=True
            )

        for block in blocks("bash"):
            if "make " not in block:
                done = await paste("bash", "-euc", domicile + block.replace(DEMO_BASE, made.base))
                assert said in done.stdout or "verified" in done.stdout or "holds" in done.stdout, done.stdout
        (program,) = blocks("python")
        program = program.replace(DEMO_BASE, made.base)
        assert (await paste(sys.executable, "-c", program)).stdout == said
        assert len(made.backends["acme-1"].bodies) == 2
    shown = [block for block in blocks("bash") if "make " not in block]
    assert len(shown) == 2, "curl and the verification of the record"


def test_what_the_readme_makes_is_in_the_makefile():
    targets = set(re.findall(r"^([a-z][a-z0-9-]*):", read("Makefile"), re.MULTILINE))
    for document in DOCUMENTS:
        for target in re.findall(r"(?:^|`)make ([a-z][a-z0-9-]*)", document.read_text(encoding="utf-8"), re.MULTILINE):
            assert target in targets, (document.name, target)


def main():
    document = TREE / "docs" / "modules.md"
    document.write_text(with_module_list(document.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
