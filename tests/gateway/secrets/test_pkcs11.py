"""The master key in SoftHSM, and in libraries that hang, crash and lie."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from audit.errors import KeyLost, KeyProviderError, KeyRefused
from audit.keys.key_files import KeyFolder
from audit.keys.master import origin_of
from audit.keys.owner_keys import KeyRing
from gateway.configuration.settings import Pkcs11
from gateway.secrets import pkcs11
from gateway.secrets.pkcs11 import Pkcs11Client, Pkcs11Master
from tests.fakes.softhsm import softhsm

KEY = bytes(range(32))


@pytest.fixture
def hsm(tmp_path, monkeypatch):
    with softhsm(tmp_path / "hsm", monkeypatch) as made:
        made.token("domicile")
        yield made


@pytest.fixture
def connect(hsm):
    made = []

    def client(**settings):
        made.append(Pkcs11Client(hsm.settings(**settings)))
        return made[-1]

    yield client
    for each in made:
        each.close()


def test_a_key_comes_back_in_its_context_alone_from_any_process(hsm, connect):
    master = Pkcs11Master.open(connect())
    wrapped = master.wrap("a", KEY)
    assert origin_of(wrapped) == ("pkcs11", 1)
    assert KEY not in wrapped
    assert Pkcs11Master.open(connect()).unwrap("a", wrapped) == KEY
    with pytest.raises(KeyLost, match="does not open"):
        master.unwrap("b", wrapped)
    with pytest.raises(KeyLost, match="does not open"):
        master.unwrap("a", wrapped[:-8] + b"AAAAAAA=")
    with pytest.raises(KeyProviderError, match="wrapped by vault"):
        master.unwrap("a", b"vault:v1:" + wrapped.rpartition(b":")[2])
    assert master.unwrap("a", wrapped) == KEY, "after all these refusals"


def test_rotation_rewrap_and_retirement_happen_in_the_token_and_for_good(connect):
    master, other = Pkcs11Master.open(connect()), Pkcs11Master.open(connect())
    old = master.wrap("a", KEY)
    assert master.rotate() == 2
    new = other.rewrap("a", old)
    assert origin_of(new) == ("pkcs11", 2), "the other process sees the new version"
    assert (other.state().versions, other.unwrap("a", old), other.unwrap("a", new)) == ((1, 2), KEY, KEY)
    with pytest.raises(KeyProviderError, match="no version 3"):
        master.retire(3)
    master.retire(2)
    assert other.state().versions == (2,)
    with pytest.raises(KeyLost, match="version 1 of the key is gone"):
        other.unwrap("a", old)
    assert other.unwrap("a", new) == KEY


def test_a_ring_works_on_it_as_on_any_master(connect, tmp_path):
    folder = tmp_path / "keys"
    folder.mkdir()
    rings = [KeyRing(KeyFolder(folder), Pkcs11Master.open(connect())) for _ in range(2)]
    wrapped = rings[0].wrap("acme", KEY)
    assert rings[1].unwrap("acme", wrapped) == KEY
    assert rings[0].rotate_master(1, lambda version: None) == 2
    assert rings[0].rewrap("acme")
    rings[0].retire_master(2)
    assert KeyRing(KeyFolder(folder), Pkcs11Master.open(connect())).unwrap("acme", wrapped) == KEY


def test_a_key_is_made_once_and_not_where_that_is_not_asked(connect):
    with pytest.raises(KeyRefused, match="there is no key of that name"):
        Pkcs11Master.open(connect(key="acme"), make=False)
    first = Pkcs11Master.open(connect(key="acme")).wrap("a", KEY)
    assert Pkcs11Master.open(connect(key="acme"), make=False).unwrap("a", first) == KEY
    with pytest.raises(KeyLost):
        Pkcs11Master.open(connect(key="acme2")).unwrap("a", first)


def test_a_key_that_may_leave_the_token_is_refused(hsm, connect):
    script = (
        "import pkcs11, sys; from pkcs11 import Attribute, KeyType\n"
        "session = pkcs11.lib(sys.argv[1]).get_token(token_label='domicile').open(rw=True, user_pin='1234')\n"
        "session.generate_key(KeyType.AES, 256, label='loose', store=True, template={Attribute.EXTRACTABLE: True})\n"
    )
    subprocess.run([sys.executable, "-c", script, hsm.module], check=True, timeout=60)
    with pytest.raises(KeyProviderError, match="not extractable"):
        Pkcs11Master.open(connect(key="loose"))


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"token": "nobody"}, KeyRefused, "not exactly one token"),
        ({"module": Path("/nowhere/lib.so")}, KeyProviderError, "cannot be loaded"),
        ({"pin": "9999"}, KeyRefused, "PIN is not accepted"),
        ({"pin": ""}, KeyRefused, "there is no PIN"),
        ({"mode": 0o644}, KeyRefused, "others than its owner"),
    ],
    ids=["token", "module", "pin", "no pin", "mode"],
)
def test_what_is_wrong_is_named_without_the_pin(hsm, change, error, says):
    pin = hsm.folder / "pin"
    if "pin" in change:
        pin.write_text(change["pin"])
    pin.chmod(change.get("mode", 0o600))
    settings = hsm.settings().model_copy(update={key: change[key] for key in ("token", "module") if key in change})
    client = Pkcs11Client(settings)
    with pytest.raises(error, match=says) as raised:
        Pkcs11Master.open(client)
    client.close()
    assert "; " in str(raised.value)
    assert "9999" not in str(raised.value) and "1234" not in str(raised.value)


def test_the_pin_is_on_no_command_line_and_the_process_ends_with_the_client(connect):
    client = connect()
    Pkcs11Master.open(client)
    process = client._process
    line = Path(f"/proc/{process.pid}/cmdline").read_bytes()
    assert b"1234" not in line and b"pkcs11_process" in line
    client.close()
    assert process.poll() is not None


def test_a_library_that_crashed_is_started_again(connect):
    client = connect()
    master = Pkcs11Master.open(client)
    wrapped = master.wrap("a", KEY)
    os.kill(client._process.pid, signal.SIGSEGV)
    client._process.wait()
    assert master.unwrap("a", wrapped) == KEY
    os.kill(client._process.pid, signal.SIGKILL)
    assert eventually(lambda: master.unwrap("a", wrapped)) == KEY


def eventually(work, error=KeyProviderError):
    for _ in range(200):
        try:
            return work()
        except error:
            time.sleep(0.05)
    return work()


def stub(tmp_path, monkeypatch, body, timeout_s=1):
    """A process in the place of ours, as a library that misbehaves makes it."""
    script = tmp_path / "process.py"
    script.write_text(body)
    real = subprocess.Popen

    def started(command, **more):
        return real([sys.executable, str(script)], **more)

    monkeypatch.setattr(pkcs11.subprocess, "Popen", started)
    pin = tmp_path / "pin"
    pin.write_text("1234")
    pin.chmod(0o600)
    return Pkcs11Client(Pkcs11(module=Path("x"), token="t", pin_file=pin, timeout_s=timeout_s))


def test_a_library_that_hangs_is_killed_and_then_left_alone_for_a_while(tmp_path, monkeypatch):
    client = stub(tmp_path, monkeypatch, "import time\ntime.sleep(3600)", timeout_s=0.1)
    for _ in range(pkcs11.FAILURES):
        with pytest.raises(KeyProviderError, match="did not answer in time"):
            client.ask("state")
        assert client._process is None, "it was killed"
    with pytest.raises(KeyProviderError, match="asked again in"):
        client.ask("state")


@pytest.mark.parametrize(
    "body", ["print('{')", "print('[' * 100000)", "raise SystemExit(3)", "print('x' * 1000000)"], ids=str.split
)
def test_a_process_that_says_nothing_known_is_an_error_with_a_fix(tmp_path, monkeypatch, body):
    client = stub(tmp_path, monkeypatch, body)
    with pytest.raises(KeyProviderError, match="; check the HSM"):
        client.ask("state")


def test_after_it_hung_it_is_asked_again_and_answers(tmp_path, monkeypatch):
    body = (
        "import json, pathlib, sys, time\n"
        f"mark = pathlib.Path({str(tmp_path / 'mark')!r})\n"
        "tries = len(mark.read_text()) if mark.exists() else 0\n"
        "mark.write_text('x' * (tries + 1))\n"
        "sys.stdin.readline()\n"
        f"tries < {pkcs11.FAILURES} and time.sleep(3600)\n"
        "for line in sys.stdin: print(json.dumps({'value': [1]}), flush=True)\n"
    )
    client = stub(tmp_path, monkeypatch, body)
    assert eventually(lambda: client.ask("state")) == [1]
    client.close()


def test_settings_that_miss_something_are_refused():
    with pytest.raises(KeyProviderError, match="set module, token and pin_file"):
        Pkcs11Client(Pkcs11())
    assert json.loads(Pkcs11().model_dump_json())["key"] == "domicile"
