"""Write the folder that the site is built from: docs/ and the documents beside it, as MkDocs reads them.

    python deploy/site/prepare.py FOLDER [--assets FOLDER]

The documents are written for code forges, and stay as they are. In the copy:

- documents that are kept outside docs/ are pages, and links among all of them are translated; links to other files
  of the repository lead to the repository;
- lists and tables begin after an empty line, which Python-Markdown wants and code forges do not;
- the scripts that pages load are in assets/.
"""

import argparse
import posixpath
import re
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ("mermaid.min.js", "iframe-worker.js")
BESIDE = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "deploy/README.md": "deploying.md",
}
"""Documents outside docs/, by the page that each becomes."""
README = "README.md"
"""The repository's own start page: links to it lead to the site's."""
REPOSITORY = "https://github.com/domicile-ai/domicile"

FENCE = re.compile(r"(^[ ]*```.*?^[ ]*```[ ]*$)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)\s#]+)(#[^)\s]*)?\)")
BEGINS = re.compile(r"(?:[-*]|\d+\.) |\|")


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the folder that the site is built from.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--assets", type=Path, help="folder with " + " and ".join(SCRIPTS))
    arguments = parser.parse_args()
    prepare(arguments.folder)
    if arguments.assets:
        (arguments.folder / "assets").mkdir()
        for script in SCRIPTS:
            shutil.copy(arguments.assets / script, arguments.folder / "assets" / script)


def prepare(folder: Path) -> None:
    """Write `folder` afresh."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "docs", folder)
    for origin, page in BESIDE.items():
        shutil.copy(ROOT / origin, folder / page)
    for file in folder.rglob("*.md"):
        text = file.read_text(encoding="utf-8")
        file.write_text(page_text(text, file.relative_to(folder).as_posix()), encoding="utf-8")


def page_text(text: str, page: str) -> str:
    """The document `text` as the page `page` (its path in the site's sources)."""
    parts = FENCE.split(text)
    parts[::2] = [spaced(linked(part, page)) for part in parts[::2]]
    return "".join(parts)


def linked(text: str, page: str) -> str:
    """`text`, where every link leads to a page or to the repository."""
    origins = {at: origin for origin, at in BESIDE.items()}
    folder = posixpath.dirname(origins.get(page, f"docs/{page}"))

    def translated(match: re.Match[str]) -> str:
        place = posixpath.normpath(posixpath.join(folder, match[1]))
        return f"]({address(place, page, match[1])}{match[2] or ''})"

    return LINK.sub(translated, text)


def address(place: str, page: str, written: str) -> str:
    """Where a link of `page` to the repository's file `place` leads; as `written` if there is no such file."""
    if place == README:
        place = "docs/index.md"
    if (ROOT / place / README).is_file():
        place += f"/{README}"
    if place in BESIDE or place.startswith("docs/"):
        return posixpath.relpath(BESIDE.get(place, place.removeprefix("docs/")), posixpath.dirname(page) or ".")
    if (ROOT / place).exists():
        return f"{REPOSITORY}/{'tree' if (ROOT / place).is_dir() else 'blob'}/main/{place}"
    return written


def spaced(text: str) -> str:
    """`text` with an empty line before each list and table that follows a paragraph at once."""
    lines: list[str] = []
    for line in text.split("\n"):
        last = lines[-1] if lines else ""
        if BEGINS.match(line) and last.strip() and not (BEGINS.match(last) or last.startswith(" ")):
            lines.append("")
        lines.append(line)
    return "\n".join(lines)


if __name__ == "__main__":
    main()
