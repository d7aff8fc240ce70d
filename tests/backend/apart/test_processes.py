"""Two backend processes on loopback, over mutual TLS: the answers are those of one."""

import json
import shutil
import signal
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from backend.apart.wire import VERSION, Ask, encoded
from backend.engine.apart.statement import CacheLayout, Statement
from gateway.upstream.request_token import PrefillPlace
from tests.backend.apart.pair import Cell, Interrupted, Member, uri_of

PROMPT = [(11 * i + 5) % 320 for i in range(200)]
SAMPLED = {"temperature": 0.9, "seed": 5, "top_p": 0.95, "frequency_penalty": 0.4}


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Cell:
    return Cell(tmp_path_factory.mktemp("cell"))


@pytest.fixture(scope="module")
def source(cell: Cell, folder: Path) -> Iterator[Member]:
    with cell.backend("source-1", folder, "prefill") as member:
        member.measured()
        yield member


@pytest.fixture(scope="module")
def decode(cell: Cell, folder: Path) -> Iterator[Member]:
    with cell.backend("decode-1", folder, "decode", "--transfer-timeout", "2") as member:
        member.measured()
        yield member


def rotated(n: int) -> list[int]:
    """A prompt that shares no beginning with others."""
    return [n % 320, *PROMPT]


def answer(found: tuple[int, object]) -> str:
    status, body = found
    assert status == 200, body
    return str(body["choices"][0]["text"])  # type: ignore[index]


@pytest.mark.parametrize("body", [{}, {"stream": True}, {"logprobs": 2}], ids=["whole", "stream", "logprobs"])
def test_greedy_answers_are_those_of_one_backend(source: Member, decode: Member, body: dict[str, object]) -> None:
    assert_same(source, decode, body)


@pytest.mark.parametrize(
    "body",
    [SAMPLED, {**SAMPLED, "n": 3}, {"structured_outputs": {"regex": "[a-z ]{8,12}"}, "ignore_eos": False}],
    ids=["one", "several", "grammar"],
)
def test_drawn_answers_are_those_of_one_backend(source: Member, decode: Member, body: dict[str, object]) -> None:
    assert_same(source, decode, body)


def assert_same(source: Member, decode: Member, body: dict[str, object]) -> None:
    prompt = rotated(len(json.dumps(body)))
    before = decode.transfers("received", "completed")
    status, found = decode.complete(prompt, source.place(decode), **body)
    assert decode.transfers("received", "completed") == before + 1, decode.process.log
    decode.scrubbed()
    expected = decode.complete(prompt, **body)
    assert (status, pieces(found)) == (expected[0], pieces(expected[1]))
    assert decode.transfers("received", "completed") == before + 1


def pieces(found: object) -> object:
    """Of an answer, all but what names the call; log probabilities to four places."""
    if isinstance(found, str):
        chunks = [json.loads(line[6:]) for line in found.splitlines() if line.startswith("data: {")]
        return "".join(chunk["choices"][0]["text"] for chunk in chunks)
    assert isinstance(found, dict), found
    return json.loads(json.dumps(found["choices"]), parse_float=lambda number: round(float(number), 4))


def test_bytes_and_seconds_are_counted_on_both_sides(source: Member, decode: Member) -> None:
    names = ("domicile_backend_kv_transfer_bytes_total", "domicile_backend_kv_transfer_seconds_count")
    before = [each.metric(name) for each in (source, decode) for name in names]
    assert answer(decode.complete(rotated(41), source.place(decode)))
    after = [each.metric(name) for each in (source, decode) for name in names]
    size = 2 * 13 * 16 * 2 * 2 * 8 * 4  # layers, blocks, tokens, keys and values, heads, width, bytes
    assert [b - a for a, b in zip(before, after, strict=True)] == [size, 1, size, 1]


def test_both_are_scrubbed_and_neither_keeps_a_byte(source: Member, decode: Member) -> None:
    assert answer(decode.complete(rotated(42), source.place(decode)))
    for each in (source, decode):
        assert each.scrubbed() == 0
        assert each.metric("domicile_backend_kv_blocks_used") == 0


def test_of_a_prompt_whose_beginning_is_known_only_the_rest_travels(source: Member, decode: Member) -> None:
    assert answer(decode.complete(rotated(43), source.place(decode)))
    before = decode.metric("domicile_backend_kv_transfer_bytes_total")
    assert answer(decode.complete([*rotated(43), *PROMPT[:40]], source.place(decode)))
    assert 0 < decode.metric("domicile_backend_kv_transfer_bytes_total") - before < 4 * 2 * 16 * 2 * 2 * 8 * 4


def test_short_prompts_and_those_with_log_probabilities_stay_where_they_are(source: Member, decode: Member) -> None:
    before = source.metric("domicile_backend_kv_transfers_total")
    assert answer(decode.complete(PROMPT[:30], source.place(decode)))
    status, found = decode.complete(rotated(44), source.place(decode), prompt_logprobs=1)
    assert status == 200 and len(found["choices"][0]["prompt_logprobs"]) == 201
    assert source.metric("domicile_backend_kv_transfers_total") == before


def _silent() -> tuple[socket.socket, int]:
    """A listener that accepts and says nothing."""
    listener = socket.create_server(("127.0.0.1", 0))
    return listener, listener.getsockname()[1]


@pytest.mark.parametrize("fault", ["nobody", "silence", "another name"])
def test_a_source_that_cannot_be_reached_costs_one_attempt(source: Member, decode: Member, fault: str) -> None:
    silent, port = _silent()
    if fault == "nobody":
        silent.close()
    named = {"name": "source-2"} if fault == "another name" else {"port": port}
    assert_costs_one_attempt(decode, source.place(decode, **named), rotated(50 + len(fault)))  # type: ignore[arg-type]
    silent.close()


@pytest.mark.parametrize("fault", ["another tenant", "another asker", "another token"])
def test_a_pair_that_was_not_decided_costs_one_attempt(source: Member, decode: Member, fault: str) -> None:
    changed = {
        "another tenant": {"uri": uri_of("source-1", "globex")},
        "another asker": {"asker": uri_of("decode-9")},
        "another token": {"backend": "source-9"},
    }[fault]
    assert_costs_one_attempt(decode, replace(source.place(decode), **changed), rotated(50 + len(fault)))


def assert_costs_one_attempt(decode: Member, place: PrefillPlace, prompt: list[int]) -> None:
    before = decode.transfers("received", "failed")
    found = answer(decode.complete(prompt, place))
    assert decode.transfers("received", "failed") == before + 1
    decode.scrubbed()
    assert found == answer(decode.complete(prompt))
    assert decode.metric("domicile_backend_kv_blocks_used") == 0


def test_other_weights_are_refused_before_anything_is_sent(
    cell: Cell, source: Member, folder: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    (other / "config.json").write_text((other / "config.json").read_text() + "\n")
    with cell.backend("decode-2", other, "decode") as decode:
        decode.measured()
        before = source.transfers("sent", "refused")
        assert answer(decode.complete(rotated(60), source.place(decode)))
        assert source.transfers("sent", "refused") == before + 1
        assert decode.transfers("received", "failed") == 1
        assert decode.metric("domicile_backend_kv_transfer_bytes_total") == 0
        assert "weights or computation" in decode.process.log


def test_another_block_size_is_refused(cell: Cell, source: Member, folder: Path) -> None:
    with cell.backend("decode-3", folder, "decode", "--block-size", "8") as decode:
        decode.measured()
        assert answer(decode.complete(rotated(61), source.place(decode)))
        assert decode.transfers("received", "failed") == 1
        assert "block_size of the KV cache: 16 and 8" in decode.process.log


def _asked(cell: Cell, source: Member, name: str, uri: str, token: bytes, root: bytes = b"") -> bytes:
    """What the source says to a question of a peer with this name."""
    layout = CacheLayout(layers=2, block_size=16, key_bytes=1024, value_bytes=1024, dtype="float32")
    ask = Ask(VERSION, token, Statement(computed_by="fp_x", layout=layout), PROMPT, 0, root, 0)
    files = cell.issued(name, uri)
    with (
        socket.create_connection(("127.0.0.1", source.process.ready["transfer_port"])) as plain,
        cell.context(files).wrap_socket(plain) as connection,
    ):
        connection.sendall(encoded(ask))
        found = b""
        while chunk := connection.recv(4096):
            found += chunk
        return found


@pytest.mark.parametrize(
    "uri",
    [
        "spiffe://domicile.test/tenant/acme/gateway",
        uri_of("decode-1", "globex"),
        uri_of("decode-1", "acme-2"),
        "spiffe://domicile.other/tenant/acme/region/eu-fr/backend/decode-1",
    ],
)
def test_only_backends_of_the_tenant_get_through_the_handshake(cell: Cell, source: Member, uri: str) -> None:
    with pytest.raises((ssl.SSLError, OSError)):
        assert _asked(cell, source, "stranger", uri, b"x") == b""
        raise OSError


def test_a_backend_of_the_tenant_without_a_token_of_its_own_gets_nothing(
    cell: Cell, source: Member, decode: Member
) -> None:
    assert b"Denied" in _asked(cell, source, "friend", uri_of("decode-8"), b"x")
    place = source.place(decode)
    lines = cell.signer.field(
        tenant="acme",
        backend=decode.name,
        method="POST",
        path="/v1/completions",
        project="",
        decision="",
        digest=bytes(32),
        prefill=place,
    )
    call, transfer = (line.split(": ")[1].encode() for line in lines.splitlines())
    assert b"for another call" in _asked(cell, source, "friend", uri_of("decode-1"), _for_source(cell, source))
    assert b"another backend" in _asked(cell, source, "friend", uri_of("decode-1"), call)
    assert b"to show" in _asked(cell, source, "friend", uri_of("decode-8"), transfer)
    assert b"weights or computation" in _asked(cell, source, "friend", uri_of("decode-1"), transfer)
    assert b"used already" in _asked(cell, source, "friend", uri_of("decode-1"), transfer)


def _for_source(cell: Cell, source: Member) -> bytes:
    """A token for an ordinary call to the source."""
    lines = cell.signer.field(
        tenant="acme",
        backend=source.name,
        method="POST",
        path="/v1/completions",
        project="",
        decision="",
        digest=bytes(32),
    )
    return lines.split(": ")[1].strip().encode()


LONG = [(7 * i + 3) % 320 for i in range(1500)]


def test_a_source_that_is_killed_inside_a_transfer_costs_one_attempt(cell: Cell, decode: Member, folder: Path) -> None:
    with cell.backend("source-3", folder, "prefill") as source:
        source.measured()
        before = decode.metric("domicile_backend_kv_transfer_bytes_total")
        failed = decode.transfers("received", "failed")

        def kill() -> None:
            engine = source.process.engine
            source.process.process.send_signal(signal.SIGKILL)
            engine.kill()

        wire = Interrupted(source.process.ready["transfer_port"], 100_000, kill)
        found = answer(decode.complete(LONG, source.place(decode, port=wire.port)))
        assert decode.transfers("received", "failed") == failed + 1, decode.process.log
        assert decode.metric("domicile_backend_kv_transfer_bytes_total") > before
        assert source.process.process.wait(30) == -signal.SIGKILL
    decode.scrubbed()
    assert found == answer(decode.complete(LONG))
    assert decode.scrubbed() == 0


def test_a_client_that_leaves_ends_the_transfer_on_both_sides(cell: Cell, source: Member, decode: Member) -> None:
    sent = threading.Event()
    wire = Interrupted(source.process.ready["transfer_port"], 100_000, sent.set)
    raw = json.dumps({"model": "tiny", "prompt": LONG[::-1], "max_tokens": 4}).encode()
    lines = cell.signer.field(
        tenant="acme",
        backend=decode.name,
        method="POST",
        path="/v1/completions",
        project="",
        decision="",
        digest=sha256(raw).digest(),
        prefill=source.place(decode, port=wire.port),
    )
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(raw)}\r\n{lines}\r\n".encode()
    with (
        socket.create_connection(("127.0.0.1", decode.process.port)) as plain,
        cell.context().wrap_socket(plain) as connection,
    ):
        connection.sendall(head + raw)
        assert sent.wait(30)
        assert decode.metric("domicile_backend_kv_blocks_used") > 0
    assert wire.left.wait(30)
    until = time.monotonic() + 30
    while any(each.metric("domicile_backend_kv_blocks_used") for each in (source, decode)):
        assert time.monotonic() < until
    assert source.scrubbed() == decode.scrubbed() == 0
