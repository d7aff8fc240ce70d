"""Blocks that go through a window, between two engines of this process: the tokens are those of one engine."""

from typing import Any

import msgspec
import pytest
import torch

from backend.engine.apart.frame import Frame, Further, PlacedFrame
from backend.engine.cache.window_handle import HOST, WindowHandle
from backend.engine.cache.windows import HostWindow, WindowUnusable, opened, sum_of_words, unsigned
from backend.engine.engine import Engine
from backend.models.decoders.decoder import Decoder
from tests.backend.engine.apart.moving import ONE_TOKEN, finished, tokens_of
from tests.backend.tiny import generate, greedy, tiny_engine, tiny_model

LONG = [(7 * i + 3) % 320 for i in range(150)]
SMALL = 4096  # bytes of a slot: two blocks of a layer


@pytest.fixture(scope="module")
def model() -> Decoder:
    return tiny_model()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows of two slots."""
    monkeypatch.setattr("backend.engine.cache.windows.made", lambda device: HostWindow.made(2, SMALL))
    monkeypatch.setattr("backend.engine.cache.pages.made", lambda device: HostWindow.made(2, SMALL))


def through_window(
    source: Engine, engine: Engine, prompt: list[int], id: int = 0, *, spoil: Any = None, free: bool = True
) -> bool:
    """As `moving.fetched`, through a window. spoil: called with each frame; returns the one that arrives."""
    engine.add(id, prompt, greedy(12), fetches=True)
    (room,) = engine.make_room()
    handle = source.windows.make("peer")
    assert handle is not None and engine.windows.open(handle) == ""
    source.add(900, prompt, ONE_TOKEN, exports=room.first, window=handle.id)
    refused = []
    further = Further.MORE
    while further is Further.MORE:
        if source.has_work:
            source.step()
        taken = source.exports.take(900, 1)
        if taken is None:
            continue
        frames, further = taken
        for frame in frames:
            assert isinstance(frame, PlacedFrame)
            arrived = spoil(frame) if spoil else frame
            refused.append(engine.imports.write(id, arrived))
            if free:
                source.exports.free(900, frame.slot)
    return engine.imports.end(id, whole=not any(refused))


@pytest.mark.parametrize("block_size", [4, 16])
def test_tokens_are_those_of_one_engine(model: Decoder, block_size: int) -> None:
    sizes: dict[str, Any] = {"block_size": block_size, "num_blocks": 1024 // block_size, "max_num_batched_tokens": 64}
    source, engine = tiny_engine(model, **sizes), tiny_engine(model, **sizes)
    assert through_window(source, engine, LONG)
    assert tokens_of(finished(engine)) == generate(tiny_engine(model, **sizes), [LONG])[0]
    for each in (source, engine):
        assert each.blocks.num_used == 0
        assert each.scrub() == 0
    assert not source.exports


def test_slots_are_used_again_and_are_zero_behind_it(model: Decoder, small: None) -> None:
    source, engine = tiny_engine(model), tiny_engine(model)
    for id in range(3):
        assert through_window(source, engine, [id, *LONG], id)
        assert tokens_of(finished(engine), id) == generate(tiny_engine(model), [[id, *LONG]])[0]
    handle = source.windows.make("peer")
    assert handle is not None
    own = source.windows.own(handle.id)
    assert own is not None and sorted(own.free) == [0, 1]
    assert all(not own.window.part(slot, SMALL).any() for slot in own.free)


def test_a_scrub_reads_slots_back(model: Decoder, small: None) -> None:
    source, engine = tiny_engine(model), tiny_engine(model)
    assert through_window(source, engine, LONG)
    assert source.scrub() == 0
    handle = source.windows.make("peer")
    assert handle is not None
    own = source.windows.own(handle.id)
    assert own is not None and set(own.used) == {0, 1}
    own.window.part(1, SMALL)[own.used[1] - 3] = 7
    assert source.scrub() == 1


def test_a_source_waits_for_slots_and_keeps_what_was_not_read(model: Decoder, small: None) -> None:
    source = tiny_engine(model, prefix_cache=False)
    handle = source.windows.make("peer")
    assert handle is not None
    source.add(900, LONG, ONE_TOKEN, exports=0, window=handle.id)
    finished(source)
    first = source.exports.take(900, 1 << 20)
    assert first is not None and len(first[0]) == 2
    assert source.exports.take(900, 1 << 20) is None
    source.exports.free(900, 7)  # no slot of its own
    assert source.exports.take(900, 1 << 20) is None
    source.exports.free(900, first[0][1].slot)  # type: ignore[union-attr]
    second = source.exports.take(900, 1 << 20)
    assert second is not None and len(second[0]) == 1
    source.abort(900)
    assert source.blocks.num_used == 0 and not source.exports
    own = source.windows.own(handle.id)
    assert own is not None and sorted(own.free) == [0, 1]


def test_each_backend_that_asks_has_a_window_of_its_own(model: Decoder) -> None:
    source = tiny_engine(model)
    handles = [source.windows.make(peer) for peer in ("one", "two", "one")]
    assert all(handles)
    ids = [handle.id for handle in handles if handle]
    assert ids[0] == ids[2] != ids[1]
    for number in range(20):
        source.windows.make(f"peer {number}")
    assert source.windows.make("one more") is None
    source.windows.close()
    assert source.windows.make("one more") is not None


def _spoilt(engine: Engine, source: Engine) -> dict[str, Any]:
    def changed(**values: Any) -> Any:
        return lambda frame: msgspec.structs.replace(frame, **values)

    def written(frame: PlacedFrame) -> Frame:
        own = source.windows.own(frame.window)
        assert own is not None
        own.window.part(frame.slot, frame.size)[frame.size - 1] ^= 1
        return frame

    return {
        "a bit of the memory": written,
        "another layer": lambda frame: msgspec.structs.replace(frame, layer=1 - frame.layer),
        "another block": lambda frame: msgspec.structs.replace(frame, first=frame.first + 1),
        "another size": lambda frame: msgspec.structs.replace(frame, size=frame.size - 8),
        "another checksum": lambda frame: msgspec.structs.replace(frame, checksum=frame.checksum ^ 1),
        "another window": changed(window=bytes(16)),
        "no slot": changed(slot=99),
        "a slot before the first": changed(slot=-1),
    }


@pytest.mark.parametrize(
    "how",
    [
        "a bit of the memory", "another layer", "another block", "another size", "another checksum", "another window",
        "no slot", "a slot before the first",
    ],
)  # fmt: skip
def test_what_does_not_fit_costs_all_and_the_prompt_is_computed_here(model: Decoder, how: str) -> None:
    source, engine = tiny_engine(model), tiny_engine(model)
    assert not through_window(source, engine, LONG, spoil=_spoilt(engine, source)[how])
    assert engine.blocks.num_used == 0
    assert tokens_of(finished(engine)) == generate(tiny_engine(model), [LONG])[0]
    assert engine.scrub() == 0


def test_an_unknown_window_means_frames(model: Decoder) -> None:
    source = tiny_engine(model)
    source.add(900, LONG, ONE_TOKEN, exports=0, window=b"unknown")
    finished(source)
    taken = source.exports.take(900, 1)
    assert taken is not None and not isinstance(taken[0][0], PlacedFrame)


def _place(*numbers: int) -> bytes:
    return msgspec.msgpack.encode(numbers)


@pytest.mark.parametrize(
    "changes",
    [
        {"id": bytes(16)}, {"id": b"short"}, {"kind": "card"}, {"slots": 3}, {"slots": 0}, {"slot_bytes": SMALL + 8},
        {"slot_bytes": SMALL + 1}, {"place": b""}, {"place": _place(0, 0)}, {"place": _place(1, 0)},
        {"place": msgspec.msgpack.encode("../../etc/passwd")}, {"slots": 1 << 40},
    ],
    ids=str,
)  # fmt: skip
def test_only_the_window_that_was_offered_is_mapped(changes: dict[str, Any]) -> None:
    window = HostWindow.made(2, SMALL)
    opened(window.handle, torch.device("cpu")).close()
    with pytest.raises(WindowUnusable, match="; "):
        opened(msgspec.structs.replace(window.handle, **changes), torch.device("cpu"))
    window.close()


def test_the_other_side_may_only_read() -> None:
    window = HostWindow.made(2, SMALL)
    other = HostWindow.opened(window.handle)
    window.part(1, 8).fill_(7)
    assert other.copied(1, 9).tolist() == [7] * 8 + [0]
    with pytest.raises(TypeError):
        other._memory[5000] = 1
    other.close()
    window.close()
    with pytest.raises(WindowUnusable):
        HostWindow.opened(WindowHandle(window.id, HOST, 2, SMALL, window.handle.place))


def test_the_checksum_sees_any_one_word_and_words_that_change_places() -> None:
    torch.manual_seed(3)
    content = torch.randint(0, 256, (4096,), dtype=torch.uint8)
    expected = unsigned(sum_of_words(content))
    assert unsigned(sum_of_words(content.clone())) == expected
    for at in (0, 7, 8, 2049, 4095):
        for bit in (1, 0x80):
            changed = content.clone()
            changed[at] ^= bit
            assert unsigned(sum_of_words(changed)) != expected
    moved = content.view(-1, 8).roll(1, 0).flatten()
    swapped = content.view(-1, 8)[[1, 0, *range(2, 512)]].flatten()
    negative = (-content.view(torch.int64)).view(torch.uint8)
    assert len({unsigned(sum_of_words(each)) for each in (content, moved, swapped, negative)}) == 4
