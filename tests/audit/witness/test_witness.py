"""The witness: the public sequence of requests, and a real log cosigned over a real connection."""

import asyncio
import json
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from audit.cli.app import app
from audit.errors import WitnessError
from audit.keys.signer import FileSigner
from audit.tree.cosignature import WitnessKey, cosigned_at
from audit.tree.note import VerifierKey
from audit.tree.tlog_checkpoint import origin_of
from audit.witness.witness import Witness
from audit.witness.witness_http import submit, witness_server
from tests.audit.conftest import VECTORS, Home, accepted

SEQUENCE = json.loads((VECTORS / "tlog-witness" / "add_checkpoint_sequence.json").read_text(encoding="utf-8"))


def opened(folder: Path, logs: dict[str, VerifierKey]) -> tuple[Witness, WitnessKey]:
    signer = FileSigner.open(folder / "witness.key", name="example.com/witness")
    return Witness(folder / "seen.db", signer.name, signer, logs), WitnessKey(signer.name, signer.public_key)


def test_the_public_sequence_of_requests_is_answered_as_its_authors_say(tmp_path: Path) -> None:
    origin = SEQUENCE["log_origin"]
    logs = {origin: VerifierKey(origin, bytes.fromhex(SEQUENCE["log_pubkey_hex_ed25519"]))}
    witness, key = opened(tmp_path, logs)
    for number, case in enumerate(SEQUENCE["cases"]):
        answer = witness.add_checkpoint(case["body"].encode())
        assert answer.status == case["status"], (number, answer)
        relation, wanted = case["assert"].removeprefix("body ").split(" ", 1)
        wanted = json.loads(wanted)
        assert answer.body == wanted if relation == "==" else wanted in answer.body, (number, answer)
        if answer.status == 200:
            note = case["body"].partition("\n\n")[2] + answer.body
            assert cosigned_at(note, key) > 1_700_000_000
    assert len(SEQUENCE["cases"]) == 9
    witness.close()
    again, _ = opened(tmp_path, logs)  # what it saw outlives it
    assert again.add_checkpoint(SEQUENCE["cases"][0]["body"].encode()).body == "5\n"
    again.close()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff",
        b"old 0\n",
        b"old 01\n\nx\n",
        b"old -1\n\nx\n",
        b"new 0\n\nx\n",
        b"old 0\nAAAA\n\nx\n",
        b"old 0\n!\n\nx\n",
        b"old 1\n" + b"KgEAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n" * 64 + b"\nx\n",
    ],
)
def test_a_malformed_request_is_refused(tmp_path: Path, body: bytes) -> None:
    witness, _ = opened(tmp_path, {})
    assert witness.add_checkpoint(body).status == 400
    witness.close()


@contextmanager
def serving(folder: Path, home: Home, tenant: str = "acme") -> Iterator[tuple[str, WitnessKey]]:
    origin = origin_of(home.key.name, tenant)
    witness, key = opened(folder, {origin: VerifierKey(origin, home.key.public_key)})
    with closing(witness), witness_server(witness, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", key
        finally:
            server.shutdown()
            thread.join()


async def grow(home: Home, calls: int, start: int = 0) -> None:
    async with await home.open() as log:
        for number in range(start, start + calls):
            await log.append(accepted(f"r{number}"))


async def test_a_log_that_grows_is_cosigned_each_time(home: Home, tmp_path: Path) -> None:
    with serving(tmp_path / "w", home) as (url, key):
        for step in range(3):
            await grow(home, 5, 5 * step)
            for _ in range(2):  # the same checkpoint may be brought again
                with closing(home.reader()) as reader:
                    note, when = submit(reader, home.key, "acme", url, key)
                    assert f"\n{reader.head('acme')[0]}\n" in note
                assert cosigned_at(note, key) == when


async def test_a_log_put_back_or_rewritten_is_not_cosigned(home: Home, tmp_path: Path) -> None:
    other = Home(tmp_path / "other")
    other.signer = home.signer
    other.key = home.key
    with serving(tmp_path / "w", home) as (url, key):
        await grow(home, 5)
        with closing(home.reader()) as reader:
            submit(reader, home.key, "acme", url, key)
        await grow(other, 3)
        with closing(other.reader()) as reader, pytest.raises(WitnessError, match="saw a log of 5 records"):
            submit(reader, home.key, "acme", url, key)
        await grow(other, 5, 3)
        with closing(other.reader()) as reader, pytest.raises(WitnessError, match="422"):
            submit(reader, home.key, "acme", url, key)


async def test_a_witness_out_of_reach_unknown_or_another_than_expected_is_an_error(home: Home, tmp_path: Path) -> None:
    await grow(home, 1)
    stranger = WitnessKey("example.com/witness", bytes(32))
    with closing(home.reader()) as reader, serving(tmp_path / "w", home) as (url, key):
        for tenant, where, witness, why in [
            ("_system", url, key, "403"),
            ("nobody", url, key, "no signed checkpoint"),
            ("acme", "http://127.0.0.1:1", key, "cannot be reached"),
            ("acme", "ftp://127.0.0.1", key, "give one that begins with http:// or https://"),
            ("acme", url, stranger, "does not hold"),
        ]:
            with pytest.raises(WitnessError, match=why):
                submit(reader, home.key, tenant, where, witness)


async def test_what_was_not_remembered_is_not_signed(home: Home, tmp_path: Path) -> None:
    await grow(home, 1)
    with closing(home.reader()) as reader, serving(tmp_path / "w", home) as (url, key):
        with closing(sqlite3.connect(tmp_path / "w" / "seen.db")) as db:
            db.execute("DROP TABLE seen")
        with pytest.raises(WitnessError, match="503"):
            submit(reader, home.key, "acme", url, key)


async def test_the_commands_anchor_a_log_and_have_it_cosigned(home: Home, tmp_path: Path) -> None:
    await grow(home, 2)
    data = ["--data", str(home.path.parent.parent)]

    async def run(*words: str) -> Result:
        return await asyncio.to_thread(CliRunner().invoke, app, [*words, *data])

    assert (await run("anchor")).output == "2 checkpoints anchored.\n"
    with serving(tmp_path / "w", home, "_anchor") as (url, key):
        done = await run("witness", "submit", "--url", url, "--key", str(key))
        assert done.exit_code == 0, done.output
        (kept,) = (home.path.parent / "witnessed").iterdir()
        assert cosigned_at(kept.read_text(encoding="utf-8"), key) > 0
        assert (await run("verify", "--checkpoint", str(kept))).exit_code == 0
        refused = await run("witness", "submit", "--url", url, "--key", str(key), "acme")
        assert (refused.exit_code, "403" in refused.stderr) == (1, True)
