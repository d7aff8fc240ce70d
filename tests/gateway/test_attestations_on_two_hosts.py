"""With the record in PostgreSQL, what a witness or an authority signed for one host verifies on every other host."""

import json
import os
import shutil
import threading
from contextlib import contextmanager

import psycopg
import pytest
from typer.testing import CliRunner

from audit.keys.signer import FileSigner
from audit.storage.attested_files import TIMESTAMPS, WITNESSED, AttestedFile, files_beside, missing
from audit.storage.location import DATABASE_VARIABLE, exchange_attested_files
from audit.tree.cosignature import WitnessKey
from audit.tree.note import VerifierKey
from audit.witness.witness import Witness
from audit.witness.witness_http import witness_server
from gateway.cli.app import app
from gateway.installation.admin_record import recorded_admin
from tests.gateway.test_installation_identity import CONTROL, fresh_database


def domicile(*words, code=0):
    done = CliRunner().invoke(app, [str(word) for word in words], obj=recorded_admin)
    assert done.exit_code == code, done.output + done.stderr + repr(done.exception)
    return done.output


@contextmanager
def witness_of(data, folder):
    """URL and key of a witness of the anchor of the installation in `data`."""
    log = VerifierKey.parse((data / "audit" / "signer.vkey").read_text())
    origin = f"{log.name}/_anchor"
    signer = FileSigner.open(folder / "witness.key", name="example.com/w")
    witness = Witness(folder / "seen.db", signer.name, signer, {origin: VerifierKey(origin, log.public_key)})
    with witness_server(witness, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", str(WitnessKey(signer.name, signer.public_key))
        finally:
            server.shutdown()
            thread.join()
            witness.close()


@pytest.fixture
def hosts(tmp_path, monkeypatch, postgresql_url):
    monkeypatch.setenv(CONTROL, fresh_database(postgresql_url))
    monkeypatch.setenv(DATABASE_VARIABLE, fresh_database(postgresql_url))
    one, two = tmp_path / "one", tmp_path / "two"
    domicile("init", "--cell", "eu-1", "--data", one, "--export-keys", tmp_path / "keys")
    domicile("init", "--keys", tmp_path / "keys", "--data", two)
    domicile("tenant", "create", "acme", "--data", one)
    domicile("audit", "anchor", "--data", one)
    return one, two


def notes(data):
    return [one.path for one in files_beside(data / "audit")]


def test_each_host_verifies_what_the_other_had_cosigned_and_holds_a_copy(hosts, tmp_path):
    one, two = hosts
    with witness_of(one, tmp_path) as (url, key):
        domicile("audit", "witness", "submit", "--url", url, "--key", key, "--data", one)
        assert notes(one) == ["witnessed/_anchor-example.com-w.note"]
        assert "The log holds" in domicile("audit", "verify", "--data", two, "--witness", key), (
            "from the database alone"
        )
        domicile("tenant", "create", "globex", "--data", two)
        domicile("audit", "anchor", "--data", two)
        assert notes(two) == notes(one), "whatever opens the record brings them"
        before = (one / "audit" / notes(one)[0]).read_text()
        domicile("audit", "witness", "submit", "--url", url, "--key", key, "--data", two)  # a greater size
    assert "The log holds" in domicile("audit", "verify", "--data", one, "--witness", key)
    exchange_attested_files(one / "audit" / "log.db")
    assert (one / "audit" / notes(one)[0]).read_text() == (two / "audit" / notes(two)[0]).read_text() != before
    domicile("audit", "export", "acme", "--output", tmp_path / "pack.zip", "--data", one)

    shutil.rmtree(one / "audit" / WITNESSED)
    assert "The log holds" in domicile("audit", "verify", "--data", one, "--witness", key)
    exchange_attested_files(one / "audit" / "log.db")
    assert notes(one) == notes(two)


def test_a_note_that_is_gone_everywhere_or_was_changed_in_the_database_is_found(hosts, tmp_path, monkeypatch):
    one, two = hosts
    with witness_of(one, tmp_path) as (url, key):
        domicile("audit", "witness", "submit", "--url", url, "--key", key, "--data", one)
    exchange_attested_files(two / "audit" / "log.db")
    with psycopg.connect(os.environ[DATABASE_VARIABLE], options="-c search_path=domicile_audit") as db:
        db.execute(
            "UPDATE attested_file SET content = convert_to(replace(convert_from(content, 'UTF8'), '/', '-'), 'UTF8')"
        )
    assert "is not of a tree of this log" in domicile("audit", "verify", "--data", two, code=1)
    with psycopg.connect(os.environ[DATABASE_VARIABLE], options="-c search_path=domicile_audit") as db:
        db.execute("DELETE FROM attested_file")
    assert "The log holds" in domicile("audit", "verify", "--data", two), "its own copy is there"
    for host in hosts:
        shutil.rmtree(host / "audit" / WITNESSED)
    for host in hosts:
        assert "its note is not in witnessed/" in domicile("audit", "verify", "--data", host, code=1)


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        (WITNESSED, "../../cell"),
        (WITNESSED, "/etc/passwd.note"),
        (WITNESSED, ".hidden.note"),
        (WITNESSED, "a.note\n"),
        (WITNESSED, "signer.key"),
        ("keys", "x.note"),
        (TIMESTAMPS, "x.tsr"),
        (TIMESTAMPS, "000000000002-0123456789abcdef.pem"),
        ("..", "x.note"),
    ],
)
def test_no_name_in_the_database_leads_to_another_file(folder, name):
    assert missing([AttestedFile(folder, name, b"x\n9\n")], []) == []


def test_only_newer_states_are_taken(hosts):
    note, token = f"{WITNESSED}/w.note", f"{TIMESTAMPS}/000000000002-0123456789abcdef.tsr"

    def files(size, der=b"der"):
        return [AttestedFile(*note.split("/"), f"o\n{size}\n".encode()), AttestedFile(*token.split("/"), der)]

    assert missing(files(5), files(4)) == files(5)[:1]
    assert missing(files(4), files(5)) == [] == missing(files(5, b"other"), files(5))
    assert missing([files(5)[0]._replace(content=b"x" * (2 << 20))], []) == []
    assert json.dumps([one.path for one in missing(files(1), [])]) == json.dumps([note, token])
