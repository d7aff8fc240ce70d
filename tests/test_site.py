"""The documentation as a site: every page has its place, nothing comes from elsewhere; built where its tools are."""

import importlib.util
import os
import re
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml

TREE = Path(__file__).parents[1]
TOOLS = TREE / "build" / "site-tools"
READERS = {
    "developer": "api.md",
    "operator": "first-tenant.md",
    "policy author": "policy-reference.md",
    "data protection officer": "for-the-dpo.md",
    "auditor": "for-the-auditor.md",
}


def program():
    spec = importlib.util.spec_from_file_location("prepare", TREE / "deploy" / "site" / "prepare.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


prepare = program()


class Loader(yaml.SafeLoader):
    """Takes MkDocs' names of Python functions for text."""


Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: suffix)
TEXT = (TREE / "mkdocs.yml").read_text(encoding="utf-8")
SITE = yaml.load(TEXT, Loader)


def pages(entries):
    for entry in entries:
        for target in entry.values() if isinstance(entry, dict) else [entry]:
            yield from pages(target) if isinstance(target, list) else [target]


def test_every_document_is_in_the_navigation_once_and_the_navigation_names_no_other():
    named = list(pages(SITE["nav"]))
    there = {file.relative_to(TREE / "docs").as_posix() for file in (TREE / "docs").rglob("*.md")}
    records = {page for page in there if re.match(r"adr/0", page)}
    assert len(named) == len(set(named))
    assert set(named) == there - records | set(prepare.BESIDE.values()), "name a new page in mkdocs.yml"


def test_the_navigation_is_that_of_diataxis():
    parts = [name for entry in SITE["nav"] for name in entry]
    assert parts == ["Start", "Tutorial", "How-to", "Reference", "Explanation"]


def test_the_start_page_sends_each_reader_to_their_page_in_one_click():
    start = (TREE / "docs" / "index.md").read_text(encoding="utf-8")
    told = dict(re.findall(r"^\| an? \*\*([\w ]+)\*\*.*? \| \[[^\]]+\]\(([\w-]+\.md)\)", start, re.MULTILINE))
    assert told.items() >= READERS.items()


def test_neither_configuration_nor_theme_names_an_asset_from_elsewhere():
    for file in [TREE / "mkdocs.yml", *(TREE / "deploy" / "site" / "theme").rglob("*.*")]:
        assert not re.search(r"(?:https?:)?//\w", file.read_text(encoding="utf-8")), file.name
    assert SITE["theme"]["font"] is False
    assert SITE["strict"] is True
    assert "offline" in SITE["plugins"]
    assert SITE["use_directory_urls"] is False


@pytest.mark.parametrize(
    ("page", "written", "led"),
    [
        ("operations.md", "../CHANGELOG.md", "changelog.md"),
        ("operations.md", "../deploy/README.md#x", "deploying.md#x"),
        ("architecture.md", "adr/", "adr/README.md"),
        ("adr/0001-shape.md", "../api.md", "../api.md"),
        ("contributing.md", "docs/api.md#errors", "api.md#errors"),
        ("deploying.md", "../docs/operations.md", "operations.md"),
        ("deploying.md", "images.sh", f"{prepare.REPOSITORY}/blob/main/deploy/images.sh"),
        ("contributing.md", "README.md", "index.md"),
        ("api.md", "not-there.md", "not-there.md"),
        ("api.md", "../not-there.py", "../not-there.py"),
        ("api.md", "https://example.eu/a.md", "https://example.eu/a.md"),
        ("api.md", "#errors", "#errors"),
    ],
)
def test_a_link_leads_from_its_page_to_where_it_led_in_the_repository(page, written, led):
    assert prepare.page_text(f"See [this]({written}).", page) == f"See [this]({led})."


def test_code_is_left_alone_and_lists_and_tables_get_their_empty_line():
    code = "```\na\n- b [x](../CHANGELOG.md)\n```"
    assert prepare.page_text(code, "api.md") == code
    assert prepare.page_text("a:\n- b\n- c\n", "api.md") == "a:\n\n- b\n- c\n"
    assert prepare.page_text("<!-- a -->\n| b |\n|---|\n", "api.md") == "<!-- a -->\n\n| b |\n|---|\n"
    assert prepare.page_text("- a\n  b\n- c\n", "api.md") == "- a\n  b\n- c\n"


def test_charts_have_title_axis_and_unit():
    charts = list((TREE / "docs").glob("*.svg"))
    assert len(charts) == 8
    for chart in charts:
        text = chart.read_text(encoding="utf-8")
        assert re.search(r"<title>.+ on an H\d00: .+</title>", text), chart.name
        assert "as a ratio" in text, chart.name
        assert {"0", "0.5", "1", "1.5", "2", "2.5"} <= set(re.findall(r'"middle">([\d.]+)</text>', text)), chart.name


class Loaded(HTMLParser):
    """Addresses of what a page loads by itself."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        if tag in ("script", "img", "iframe", "source", "video", "audio", "embed"):
            self.found.append(attrs.get("src") or "")
        if tag == "link":
            self.found.append(attrs.get("href") or "")


@pytest.mark.skipif(not (TOOLS / ".installed").exists(), reason="`make site` installs what builds the site")
def test_the_built_site_is_sound_and_loads_nothing_from_elsewhere(tmp_path):
    prepare.prepare(tmp_path / "pages")
    (tmp_path / "pages" / "assets").mkdir()
    for script in prepare.SCRIPTS:
        (tmp_path / "pages" / "assets" / script).write_bytes((TOOLS / "assets" / script).read_bytes())
    text = TEXT.replace("docs_dir: build/site-pages", f"docs_dir: {tmp_path / 'pages'}")
    text = text.replace("custom_dir: deploy", f"custom_dir: {TREE / 'deploy'}")
    (tmp_path / "mkdocs.yml").write_text(text.replace("site_dir: build/site", f"site_dir: {tmp_path / 'site'}"))
    done = subprocess.run(
        [TOOLS / "bin" / "mkdocs", "build", "--strict", "--quiet", "-f", tmp_path / "mkdocs.yml"],
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    built = list((tmp_path / "site").rglob("*.html"))
    assert len(built) > 100
    for file in built:
        page = Loaded()
        page.feed(file.read_text(encoding="utf-8"))
        assert page.found
        assert not [address for address in page.found if re.match(r"(?:https?:)?//", address)], file.name
    for style in (tmp_path / "site").rglob("*.css"):
        assert not re.search(r"url\([\"']?(?:https?:)?//|@import", style.read_text(encoding="utf-8")), style.name
    assert "mermaid.min.js" in (tmp_path / "site" / "architecture.html").read_text(encoding="utf-8")
    assert "mermaid.min.js" not in (tmp_path / "site" / "api.html").read_text(encoding="utf-8")
