"""The first start on a card that nobody measured; time is told by a fake, launches are the interpreter's."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from backend.kernels.launching import tuning
from backend.kernels.launching.self_tuning import SECONDS, CardChoices, CompilationError, choices_of_host, first_start
from backend.kernels.launching.tuning import Choice, Choices, Lookup, OutOfResources
from backend.kernels.linear.narrow import candidates, narrow_linear, narrow_parts

GPU = torch.cuda.is_available()
DEFAULT, OTHER, LARGE = (Choice.of(warps, 2, TILE=32 * warps) for warps in (1, 2, 4))


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Card:
    """Takes so long for each choice, and runs out of something where the time is an error."""

    def __init__(self, clock: Clock, times: dict[Choice, Any], cost: float = 1.0) -> None:
        self.clock, self.times, self.cost = clock, times, cost
        self.launched: list[Choice] = []

    def launch(self, choice: Choice) -> str:
        self.launched.append(choice)
        if isinstance(self.times[choice], Exception):
            raise self.times[choice]
        return f"with {choice.warps} warps"

    def time(self, call: Any) -> float:
        call()
        self.clock.now += self.cost
        return float(self.times[self.launched[-1]])


def lookup(shape: str = "m8 n64 k64", kernel: str = "narrow_linear") -> Lookup:
    return Lookup(kernel, shape, DEFAULT, lambda: [OTHER, LARGE])


@pytest.fixture
def shipped(tmp_path: Path) -> Path:
    path = tmp_path / "shipped.json"
    measured = Choices.load(path, "NVIDIA H200", "3.6.0")
    measured.known["narrow_linear[m8 n64 k64]"] = OTHER
    measured.save()
    return path


@pytest.fixture(autouse=True)
def defaults_afterwards() -> Any:
    yield
    tuning.use(Choices("defaults"))


def start(shipped: Path, host: Path, card: Card, lookups: list[Lookup], *, enabled: bool = True) -> Any:
    """One start on an L40S; what was launched, and the search."""
    choices = CardChoices.load(shipped, host, "NVIDIA L40S", "3.6.0")
    tuning.use(choices.in_use)
    told: list[tuple[int, int]] = []
    with first_start(choices, lambda *seconds: told.append(seconds), enabled=enabled, timer=card.time) as search:
        if search is not None:
            search.clock = card.clock
            search.__post_init__()
        done = [tuning.launched(each, card.launch) for each in lookups]
    assert all(0 <= done <= total == SECONDS for done, total in told)
    return done, search


def test_the_fastest_choice_is_used_at_once_and_kept_for_the_next_start(shipped: Path, tmp_path: Path) -> None:
    host = tmp_path / "cache" / "launch-choices.json"
    card = Card(Clock(), {DEFAULT: 3.0, OTHER: 2.0, LARGE: 1.0})
    done, search = start(shipped, host, card, [lookup(), lookup()])
    assert done == ["with 4 warps", "with 4 warps"]
    assert card.launched == [DEFAULT, OTHER, LARGE, LARGE, LARGE], "timed once, however often it is launched"
    assert search.found == {lookup().key} and not search.left
    again = Card(Clock(), card.times)
    done, search = start(shipped, host, again, [lookup()])
    assert (done, again.launched) == (["with 4 warps"], [LARGE])
    assert not search.found


def test_a_choice_that_the_card_cannot_run_is_passed_over(shipped: Path, tmp_path: Path) -> None:
    too_much = OutOfResources(114_688, 101_376, "shared memory")
    broken = CompilationError("", type("Node", (), {"lineno": 1, "col_offset": 0})(), "no such instruction")
    card = Card(Clock(), {DEFAULT: too_much, OTHER: 5.0, LARGE: broken})
    done, _ = start(shipped, tmp_path / "c.json", card, [lookup()])
    assert done == ["with 2 warps"]


def test_a_card_that_runs_none_of_them_fails_as_it_would_without_timing(shipped: Path, tmp_path: Path) -> None:
    too_much = OutOfResources(114_688, 101_376, "shared memory")
    card = Card(Clock(), dict.fromkeys([DEFAULT, OTHER, LARGE], too_much))
    card.times |= {Choice.of(c.warps, 1, **dict(c.blocks)): too_much for c in (DEFAULT, OTHER, LARGE)}
    with pytest.raises(OutOfResources):
        start(shipped, tmp_path / "c.json", card, [lookup()])


def test_when_the_time_is_over_the_rest_is_left_to_the_next_start(shipped: Path, tmp_path: Path) -> None:
    host = tmp_path / "c.json"
    lookups = [lookup(f"m8 n{64 * n} k64") for n in range(1, 4)]
    card = Card(Clock(), {DEFAULT: 3.0, OTHER: 2.0, LARGE: 1.0}, cost=SECONDS / 4)
    _, search = start(shipped, host, card, lookups)
    assert search.found == {lookups[0].key}
    assert search.left == {lookups[1].key, lookups[2].key}, "the second was not timed to its end"
    assert set(Choices.load(host, "NVIDIA L40S", "3.6.0").known) == {lookups[0].key}
    _, search = start(shipped, host, Card(Clock(), card.times), lookups)
    assert search.found == {lookups[1].key, lookups[2].key}


def test_what_two_starts_found_at_once_is_kept_of_both(shipped: Path, tmp_path: Path) -> None:
    host = tmp_path / "c.json"
    times = {DEFAULT: 3.0, OTHER: 2.0, LARGE: 1.0}
    first = CardChoices.load(shipped, host, "NVIDIA L40S", "3.6.0")
    start(shipped, host, Card(Clock(), times), [lookup("m8 n64 k64")])
    first.kept.known["narrow_linear[m16 n64 k64]"] = OTHER
    first.kept.save()
    assert len(Choices.load(host, "NVIDIA L40S", "3.6.0").known) == 2


def test_a_measured_card_is_not_timed(shipped: Path, tmp_path: Path) -> None:
    choices = CardChoices.load(shipped, tmp_path / "c.json", "NVIDIA H200", "3.6.0")
    assert choices.is_measured and choices.in_use.known
    with first_start(choices, lambda *_: None, timer=lambda _: pytest.fail("timed")) as search:
        assert search is None


def test_choices_of_another_compiler_or_of_the_package_are_not_overruled(shipped: Path, tmp_path: Path) -> None:
    host = tmp_path / "c.json"
    mine = Choices.load(host, "NVIDIA H200", "3.6.0")
    mine.known["narrow_linear[m8 n64 k64]"] = LARGE
    mine.save()
    assert CardChoices.load(shipped, host, "NVIDIA H200", "3.6.0").in_use.known["narrow_linear[m8 n64 k64]"] == OTHER
    assert CardChoices.load(shipped, host, "NVIDIA H200", "3.7.0").in_use.known == {}


def test_where_it_is_not_wanted_nothing_is_timed(
    shipped: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    card = Card(Clock(), {DEFAULT: 3.0, OTHER: 2.0, LARGE: 1.0})
    done, search = start(shipped, tmp_path / "c.json", card, [lookup()], enabled=False)
    assert (done, search) == (["with 1 warps"], None)
    assert "was never measured" in caplog.text
    assert not (tmp_path / "c.json").exists()


def test_attention_and_experts_keep_their_defaults(shipped: Path, tmp_path: Path) -> None:
    card = Card(Clock(), {DEFAULT: 3.0, OTHER: 2.0, LARGE: 1.0})
    lookups = [lookup(kernel="paged_decode"), lookup(kernel="grouped_linear")]
    done, search = start(shipped, tmp_path / "c.json", card, lookups)
    assert done == ["with 1 warps"] * 2 and not search.found and not search.left


def test_a_folder_that_cannot_be_written_costs_the_next_start_its_time_and_nothing_else(
    shipped: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    card = Card(Clock(), {DEFAULT: 3.0, OTHER: 2.0, LARGE: 1.0})
    done, _ = start(shipped, tmp_path / "file" / "c.json", card, [lookup()])
    assert done == ["with 4 warps"]
    assert "set XDG_CACHE_HOME to a folder that this user may write" in caplog.text


def test_the_file_is_in_the_cache_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert choices_of_host() == tmp_path / "domicile" / "launch-choices.json"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert choices_of_host() == Path.home() / ".cache" / "domicile" / "launch-choices.json"


@pytest.mark.skipif(GPU, reason="where there is a GPU, test_a_card_times_its_own_products runs")
def test_every_candidate_of_a_real_product_gives_the_product(shipped: Path, tmp_path: Path) -> None:
    """By the interpreter; the timer prefers what was launched last."""
    torch.manual_seed(7)
    x, weight = torch.randn(3, 128), torch.randn(32, 128)
    results: list[torch.Tensor] = []

    def timer(call: Any) -> float:
        results.append(call())
        return -float(len(results))

    choices = CardChoices.load(shipped, tmp_path / "c.json", "NVIDIA L40S", "3.6.0")
    tuning.use(choices.in_use)
    with first_start(choices, lambda *_: None, timer=timer):
        whole, parts = narrow_linear(x, weight), narrow_parts(x, weight)
    wanted = x @ weight.T
    torch.testing.assert_close(whole, wanted, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(parts.sum(0), wanted, rtol=1e-5, atol=1e-4)
    for each in filter(lambda each: each is not None, results):
        torch.testing.assert_close(each.sum(0), wanted, rtol=1e-5, atol=1e-4)
    kept = json.loads((tmp_path / "c.json").read_text())["NVIDIA L40S / triton 3.6.0"]
    assert set(kept) == {"narrow_linear[m8 n32 k128 float32]", "narrow_linear[m8 n32 k128 parts float32]"}
    last = candidates(8, 32, 128, 4, parts=True)[-1]
    assert kept["narrow_linear[m8 n32 k128 parts float32]"] == last.as_json()


@pytest.mark.skipif(not GPU, reason="a card times its own products")
def test_a_card_times_its_own_products(shipped: Path, tmp_path: Path) -> None:
    x = torch.randn(8, 4096, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    choices = CardChoices.load(shipped, tmp_path / "c.json", "a card", "3")
    tuning.use(choices.in_use)
    with torch.inference_mode(), first_start(choices, lambda *_: None) as search:
        y = narrow_linear(x, weight)
    assert search is not None and len(search.found) == 1
    torch.testing.assert_close(y, x @ weight.T, rtol=2e-2, atol=2)
