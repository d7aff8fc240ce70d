"""`domicile backend scrub` against a running backend."""

import json
import urllib.request
from pathlib import Path

from typer.testing import CliRunner

from backend.cli.serve import app
from tests.backend.running import Backend


def test_it_zeroes_the_cache_of_a_running_backend_and_says_so(folder: Path, tmp_path: Path) -> None:
    with Backend(tmp_path / "log", "--model", str(folder), "--served-name", "tiny", "--kv-blocks", "64") as backend:
        body = json.dumps({"model": "tiny", "prompt": [5] * 40, "max_tokens": 2}).encode()
        request = urllib.request.Request(f"{backend.url}/v1/completions", body)
        for expected in (0, 32):
            with urllib.request.urlopen(request) as answer:
                assert json.load(answer)["usage"]["prompt_tokens_details"]["cached_tokens"] == expected
        done = CliRunner().invoke(app, ["scrub", "--url", backend.url, "--json"])
        assert done.exit_code == 0
        assert json.loads(done.stdout) == {"blocks": 64, "residue_bytes": 0}
        with urllib.request.urlopen(request) as answer:
            assert json.load(answer)["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_where_nobody_listens_it_says_so_and_ends_with_one() -> None:
    done = CliRunner().invoke(app, ["scrub", "--url", "http://127.0.0.1:1"])
    assert done.exit_code == 1
    assert "error" in done.stderr


def test_an_address_of_another_kind_is_refused() -> None:
    assert CliRunner().invoke(app, ["scrub", "--url", "file:///etc/passwd"]).exit_code == 2
