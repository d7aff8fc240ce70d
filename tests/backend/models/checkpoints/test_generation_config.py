import json
from pathlib import Path
from typing import Any

import pytest

from backend.errors import CorruptCheckpoint
from backend.models.checkpoints.generation_config import SamplingDefaults, sampling_defaults


def written(folder: Path, **config: Any) -> Path:
    (folder / "generation_config.json").write_text(json.dumps(config))
    return folder


def test_without_the_file_the_defaults_are_neutral(tmp_path: Path) -> None:
    assert sampling_defaults(tmp_path) == SamplingDefaults(1.0, 1.0, 0, 0.0, 1.0)


def test_what_the_file_recommends_holds_and_the_rest_is_neutral(tmp_path: Path) -> None:
    found = sampling_defaults(written(tmp_path, temperature=0.6, top_k=20, top_p=0.95, do_sample=True, min_p=None))
    assert found == SamplingDefaults(temperature=0.6, top_k=20, top_p=0.95)


@pytest.mark.parametrize(
    ("name", "value"),
    [("temperature", -1), ("temperature", "hot"), ("top_p", 0), ("top_p", 1.5), ("min_p", True), ("top_k", -2)],
)
def test_a_value_out_of_range_is_refused_with_the_way_out(tmp_path: Path, name: str, value: Any) -> None:
    with pytest.raises(CorruptCheckpoint, match=f"{name} is .* start with --generation-config none"):
        sampling_defaults(written(tmp_path, **{name: value}))
