"""Runs of measurements keep what they have measured, part by part."""

import json

import pytest

from bench.measurement import Measurement, options_of


def test_a_run_that_breaks_off_leaves_the_parts_before(tmp_path):
    file = tmp_path / "figures.json"
    options = options_of("doc", count=3, of="answers").parse_args(["--json", str(file)])
    run = Measurement(options, limits=[1])

    def breaks():
        raise KeyboardInterrupt

    assert run.part("first", lambda: {"x": 1}) == {"x": 1}
    with pytest.raises(KeyboardInterrupt):
        run.part("second", breaks)
    kept = json.loads(file.read_text())
    assert kept["first"] == {"x": 1}
    assert kept["limits"] == [1]
    assert kept["count"] == 3
    assert "second" not in kept
