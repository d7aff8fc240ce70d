import json
import re
import string
from html.parser import HTMLParser
from pathlib import Path

import pytest

from audit.law.deadlines import load_clocks
from gateway.console.language import FOLDER, NAMES, language, language_of
from gateway.console.navigation import OF_INSTALLATION, OF_TENANT
from gateway.console.pages.oversight import LAWS, SEVERITIES
from gateway.identity.roles import ROLE_TABLE

CONSOLE = FOLDER.parent
TEMPLATES = sorted((CONSOLE / "templates").glob("*.html"))
CATALOGUES = {code: json.loads((FOLDER / f"{code}.json").read_text()) for code in NAMES}
KEY = re.compile(r"""\bt\(\s*["']([a-z0-9_.]+)["']""")
IN_CODE = re.compile(r"""["']((?:duty|done)\.[a-z_.]+)["']|done=["']([a-z_.]+)["']""")
NO_WORDS = {"Domicile", "SHA-256", "ms", "ms · p95", "domicile person create-token … --console"}
"""What is the same in every language: names, units and commands."""


def test_the_three_catalogues_have_the_same_texts_with_the_same_places_to_fill():
    fields = {
        code: {
            key: sorted(name for _, name, *_ in string.Formatter().parse(text) if name) for key, text in all_.items()
        }
        for code, all_ in CATALOGUES.items()
    }
    assert len(fields["en"]) > 300
    assert fields["en"] == fields["de"] == fields["fr"]
    assert not [key for all_ in CATALOGUES.values() for key, text in all_.items() if not text.strip()]


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.name)
def test_every_text_that_a_page_asks_for_is_in_the_catalogues(template):
    asked = set(KEY.findall(template.read_text()))
    assert not {key for key in asked if not key.endswith(".")} - CATALOGUES["en"].keys()


def test_every_text_that_a_module_names_is_in_the_catalogues():
    asked = set()
    for module in CONSOLE.rglob("*.py"):
        for key, done in IN_CODE.findall(module.read_text()):
            asked.add(key or f"done.{done}")
    assert len(asked) > 15
    assert not asked - CATALOGUES["en"].keys()
    entries = [*(each for _, group in OF_TENANT for each in group), *OF_INSTALLATION]
    assert not {f"nav.{each.key}" for each in entries} - CATALOGUES["en"].keys()
    assert not {f"role.{role}" for role in ROLE_TABLE} - CATALOGUES["en"].keys()


class Words(HTMLParser):
    """Texts and attributes for readers, of a template without its Jinja parts."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_data(self, data):
        self.found.append(data)

    def handle_starttag(self, tag, attributes):
        self.found += [value for name, value in attributes if name in {"title", "aria-label", "alt"} and value]


def literals(text):
    plain = re.sub(r"\{#.*?#\}|\{%.*?%\}|\{\{.*?\}\}", " ", text, flags=re.DOTALL)
    words = Words()
    words.feed(plain)
    said = {each.strip(" \n·/–…,:€%()+*&") for each in words.found}
    return {each for each in said if re.search(r"[A-Za-z]{2}", each) and each not in NO_WORDS}


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.name)
def test_no_page_has_words_outside_of_the_catalogues(template):
    assert literals(template.read_text()) == set()


def test_a_word_that_is_written_into_a_page_would_be_found():
    assert literals("<p>{{ t('x') }} Hello</p>") == {"Hello"}
    assert literals('<a title="Go on">{{ t("x") }}</a>') == {"Go on"}


class Asked:
    def __init__(self, accept="", cookie=""):
        self.headers = {"accept-language": accept}
        self.cookies = {"domicile-language": cookie}


@pytest.mark.parametrize(
    ("accept", "cookie", "code"),
    [
        ("", "", "en"),
        ("de-AT,de;q=0.9,en;q=0.8", "", "de"),
        ("en;q=0.5, fr;q=0.9", "", "fr"),
        ("ja, it;q=0.9", "", "en"),
        ("fr", "de", "de"),
        ("fr", "xx", "fr"),
        ("de;q=nonsense", "", "en"),
    ],
)
def test_the_language_is_the_chosen_one_or_the_first_that_the_browser_prefers(accept, cookie, code):
    assert language_of(Asked(accept, cookie)).code == code


def test_numbers_are_written_as_each_language_does():
    assert [language(code).number(1234567.5, 1) for code in NAMES] == [
        "1,234,567.5",
        "1.234.567,5",
        "1\u202f234\u202f567,5",
    ]


def test_articles_are_cited_by_the_abbreviations_of_each_language():
    assert [language(code).article("GDPR 15; AI Act 14") for code in NAMES] == [
        "GDPR 15; AI Act 14",
        "DSGVO 15; KI-Verordnung 14",
        "RGPD 15; Règlement sur l’IA 14",
    ]
    assert language("de").article("DORA 19(4)(a)") == "DORA 19(4)(a)"


def test_the_severities_are_those_of_the_laws():
    table = load_clocks()
    assert {law: tuple(table.severity_names([law])) for law in LAWS} == SEVERITIES
    assert not {f"severity.{name}" for names in SEVERITIES.values() for name in names} - CATALOGUES["en"].keys()


def test_scripts_and_styles_come_from_the_package_alone():
    vendored = Path("gateway/console/static/htmx.min.js")
    assert "d6fdc75f204e6bdefa99b69bf1e6d4ac69b8a364f77929f45c13476b4000f717" in Path("docs/console.md").read_text()
    from hashlib import sha256

    digest = sha256(vendored.read_bytes()).hexdigest()
    assert digest == "d6fdc75f204e6bdefa99b69bf1e6d4ac69b8a364f77929f45c13476b4000f717"
    for template in TEMPLATES:
        text = template.read_text()
        assert not re.search(r"https?://|<style|style=|<script(?! src=)|\son[a-z]+=|hx-on", text), template.name
