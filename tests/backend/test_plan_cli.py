"""``domicile plan`` of what no card can serve."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gateway.cli import app
from tests.backend.embedding_models import write_decoder, write_encoder
from tests.backend.models.families.test_gemma import GEMMA2


@pytest.mark.parametrize("write", [write_decoder, write_encoder])
def test_a_model_of_vectors_is_refused_by_name(write: Any, tmp_path: Path) -> None:
    write(tmp_path)
    result = CliRunner().invoke(app, ["plan", "--model", str(tmp_path)])
    assert result.exit_code == 1
    assert "on a GPU this model cannot be served: embeddings are computed on the CPU only" in result.output


def test_a_family_that_the_kernels_do_not_compute_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(GEMMA2))
    result = CliRunner().invoke(app, ["plan", "--model", str(tmp_path), "--json"])
    assert result.exit_code == 1
    assert "Gemma 2's soft caps and norms are computed on the CPU only" in result.output
