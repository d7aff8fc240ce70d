from pathlib import Path

import pytest

from audit.log.reserve import Reserve


def test_a_filled_reserve_takes_its_space_and_gives_it_back(tmp_path: Path) -> None:
    reserve = Reserve(tmp_path / "log.reserve", 1 << 20)
    reserve.fill()
    reserve.fill()
    stat = (tmp_path / "log.reserve").stat()
    assert stat.st_size == 1 << 20
    assert stat.st_blocks * 512 >= 1 << 20, "the space is taken, not only promised"
    reserve.release()
    reserve.release()
    assert not (tmp_path / "log.reserve").exists()


def test_a_reserve_that_does_not_fit_takes_nothing(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        Reserve(tmp_path / "log.reserve", 1 << 60).fill()
    assert (tmp_path / "log.reserve").stat().st_blocks == 0


def test_no_reserve_can_be_asked_for(tmp_path: Path) -> None:
    Reserve(tmp_path / "log.reserve", 0).fill()
    assert list(tmp_path.iterdir()) == []
