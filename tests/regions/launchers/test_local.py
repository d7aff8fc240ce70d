import asyncio
import json
import os
import signal
import ssl
import stat
import subprocess
import sys
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import psutil
import pytest
import uvloop

from regions.errors import LaunchError
from regions.fleet.launcher import BackendSpec
from regions.identity.identity import BackendIdentity
from regions.launchers.local import LocalLauncher, RestartPolicy
from regions.launchers.topology import Topology

FAKE = (sys.executable, str(Path(__file__).parents[1] / "fake_backend.py"))
IDENTITY = BackendIdentity("demo", "acme", "eu-fr-par", "acme-1")


def spec(behave="well", **more):
    return BackendSpec(IDENTITY, Path("model.gguf"), "smollm2", options=("--behave", behave), **more)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "data" / "backends" / "acme-1"


@pytest.fixture
def launch(tmp_path, authority):
    def make(**more):
        return LocalLauncher(tmp_path / "data", authority, **({"command": FAKE, "grace_s": 2} | more))

    return make


def seen(folder):
    return json.loads((folder / "seen.json").read_text())


def is_running(pid):
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


async def until(condition, seconds=5.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        await asyncio.sleep(0.02)


async def test_a_started_backend_is_ready_and_known_by_its_identity(launch):
    said = []
    async with launch() as launcher:
        running = await launcher.start(spec(), progress=said.append)
        assert running.backend.identity == IDENTITY
        assert running.backend.models == ("smollm2",)
        assert running.backend.url == f"https://127.0.0.1:{4000 + running.pid % 1000}"
        assert is_running(running.pid)
        assert launcher.running == {"acme-1": running}
    assert not is_running(running.pid)
    assert len(said) == 3
    assert "ready on port" in said[-1]


async def test_it_is_told_who_it_is_and_whom_to_answer(launch, folder):
    async with launch() as launcher:
        await launcher.start(spec(threads=2))
        options = seen(folder)["options"]
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(options["cert"], options["key"])
        context.load_verify_locations(options["ca"])
    assert (options["tenant"], options["region"], options["backend_id"]) == ("acme", "eu-fr-par", "acme-1")
    assert options["peer_uri"] == "spiffe://domicile.demo/tenant/acme/gateway"
    assert (options["host"], options["port"], options["threads"]) == ("127.0.0.1", 0, "2")
    assert Path(options["model"]).is_absolute()


async def test_its_files_are_for_the_owner_alone(launch, folder):
    async with launch() as launcher:
        await launcher.start(spec())
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        for name in ("cert.pem", "key.pem", "backend.log"):
            assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600


async def test_it_inherits_no_secret_and_sees_only_its_gpus(launch, folder, monkeypatch):
    monkeypatch.setenv("DOMICILE_DATABASE_URL", "postgresql://user:secret@host/db")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    async with launch() as launcher:
        await launcher.start(spec(gpus=(1, 3)))
        env = seen(folder)["env"]
        await launcher.stop("acme-1")
        await launcher.start(spec())
        without = seen(folder)["env"]
    assert env["CUDA_VISIBLE_DEVICES"] == "1,3"
    assert without["CUDA_VISIBLE_DEVICES"] == ""
    assert "secret" not in json.dumps(env)


async def test_one_that_fails_says_why_with_the_end_of_its_log(launch, folder):
    async with launch() as launcher:
        with pytest.raises(LaunchError, match="ended with status 3") as error:
            await launcher.start(spec("fail"))
        assert "  | cannot load the model: not enough memory" in str(error.value)
        assert str(folder / "backend.log") in str(error.value)
        with pytest.raises(LaunchError) as again:
            await launcher.start(spec("fail"))
        assert str(again.value).count("not enough memory") == 1  # of this start, not of the one before
        assert launcher.running == {}
        assert (await launcher.start(spec())).backend.id == "acme-1"


async def test_a_command_that_does_not_exist_is_a_clear_error(launch):
    async with launch(command=("/no/such/program",)) as launcher:
        with pytest.raises(LaunchError, match="cannot run /no/such/program"):
            await launcher.start(spec())


async def test_one_that_is_not_ready_in_time_is_ended(launch, folder):
    async with launch(ready_within_s=1) as launcher:
        with pytest.raises(LaunchError, match="not ready within 1 s"):
            await launcher.start(spec("hang"))
    assert not is_running(seen(folder)["pid"])


async def test_a_start_that_is_given_up_leaves_nothing_running(launch, folder):
    async with launch() as launcher:
        starting = asyncio.create_task(launcher.start(spec("hang")))
        await until(lambda: (folder / "seen.json").exists() and (folder / "seen.json").read_text())
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert not is_running(seen(folder)["pid"])
        assert launcher.running == {}


async def test_one_that_ignores_sigterm_is_killed_after_the_grace(launch, folder):
    async with launch(grace_s=0.5) as launcher:
        running = await launcher.start(spec("stubborn"))
        await launcher.stop("acme-1")
        assert not is_running(running.pid)
        assert (folder / "terminated").exists(), "it was asked first"


async def test_children_of_a_backend_go_with_it(launch, folder):
    async with launch() as launcher:
        await launcher.start(spec("parent"))
        grandchild = int((folder / "grandchild").read_text())
        assert is_running(grandchild)
        await launcher.stop("acme-1")
        await until(lambda: not is_running(grandchild))


async def test_what_a_crashed_backend_leaves_behind_is_killed(launch, folder):
    changes = []
    async with launch(on_change=lambda _, running: changes.append(running)) as launcher:
        await launcher.start(spec("parent that exits"))
        await until(lambda: len(changes) == 2)
        await until(lambda: not is_running(int((folder / "grandchild").read_text())))


async def test_a_daemon_that_holds_the_output_open_does_not_hold_up_the_stop(launch, folder):
    async with launch(grace_s=0.5) as launcher:
        await launcher.start(spec("parent of a daemon"))
        try:
            async with asyncio.timeout(5):
                await launcher.stop("acme-1")
        finally:
            os.kill(int((folder / "grandchild").read_text()), signal.SIGKILL)  # out of the group, beyond our reach


async def test_it_may_print_a_lot_without_being_stopped_by_a_full_pipe(launch, folder):
    async with launch() as launcher:
        await launcher.start(spec("chatty"))
        await until((folder / "said").exists)
    assert (folder / "backend.log").stat().st_size > 1_000_000


async def test_the_same_backend_does_not_start_twice(launch):
    async with launch() as launcher:
        await launcher.start(spec())
        with pytest.raises(LaunchError, match="runs already"):
            await launcher.start(spec())


async def test_who_stops_it_twice_waits_twice(launch):
    async with launch(grace_s=0.5) as launcher:
        running = await launcher.start(spec("stubborn"))
        first = asyncio.create_task(launcher.stop("acme-1"))
        await asyncio.sleep(0.05)
        assert is_running(running.pid)
        await launcher.stop("acme-1")
        assert not is_running(running.pid)
        await first


async def test_who_stops_waiting_does_not_stop_its_end_and_closing_waits_for_it(launch):
    launcher = launch(grace_s=0.5)
    running = await launcher.start(spec("stubborn"))
    stopping = asyncio.create_task(launcher.stop("acme-1"))
    await asyncio.sleep(0.05)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    assert is_running(running.pid)
    await launcher.close()
    assert not is_running(running.pid)


async def test_until_it_has_ended_its_card_is_its_own(launch):
    on_card = replace(spec("stubborn", card="h100"), options=("--behave", "stubborn"))
    other = replace(spec(card="h100"), identity=BackendIdentity("demo", "acme", "eu-fr-par", "acme-2"))
    async with launch(gpus=(4,), grace_s=0.5) as launcher:
        await launcher.start(on_card)
        stopping = asyncio.create_task(launcher.stop("acme-1"))
        await asyncio.sleep(0.05)
        with pytest.raises(LaunchError, match="no GPU of this machine is free"):
            await launcher.start(other)
        await stopping
        await launcher.start(other)


async def test_stopping_what_does_not_run_does_nothing(launch):
    async with launch() as launcher:
        await launcher.stop("acme-1")


async def test_a_crash_is_told_and_not_repaired_unless_asked(launch):
    changes = []
    async with launch(on_change=lambda name, running: changes.append((name, running))) as launcher:
        running = await launcher.start(spec())
        os.kill(running.pid, signal.SIGKILL)
        await until(lambda: len(changes) == 2)
        assert changes == [("acme-1", running), ("acme-1", None)]
        assert launcher.running == {}


async def test_after_a_crash_it_is_started_again_as_often_as_needed(launch, folder):
    changes = []
    policy = RestartPolicy(first_s=0.05, longest_s=0.1)
    async with launch(restart=policy, on_change=lambda _, running: changes.append(running)) as launcher:
        await launcher.start(spec("crash twice"))
        await until(lambda: len(changes) == 5)
        assert [running is None for running in changes] == [False, True, False, True, False]
        assert len({running.pid for running in changes if running}) == 3
        assert launcher.running == {"acme-1": changes[-1]}
        assert is_running(changes[-1].pid)
    assert not is_running(changes[-1].pid)


async def test_stopping_ends_a_restart_that_is_under_way(launch, folder):
    changes = []
    policy = RestartPolicy(first_s=30)
    async with launch(restart=policy, on_change=lambda _, running: changes.append(running)) as launcher:
        running = await launcher.start(spec())
        os.kill(running.pid, signal.SIGKILL)
        await until(lambda: len(changes) == 2)
        await launcher.stop("acme-1")
    assert len(changes) == 2


async def test_its_leaf_is_renewed_in_place_while_it_runs(launch, folder):
    async with launch(leaf_lifetime=timedelta(seconds=1), renewal_check_s=0.2) as launcher:
        running = await launcher.start(spec())
        first = (folder / "cert.pem").read_bytes()
        await until(lambda: (folder / "cert.pem").read_bytes() != first)
        await until(lambda: is_pair(folder))
        assert launcher.running == {"acme-1": running}


async def test_a_disk_that_is_full_does_not_end_the_renewal_of_its_leaf(launch, folder, authority, monkeypatch, caplog):
    real, failed = authority.renew_if_due, []

    def renew_if_due(*given, **more):
        if len(failed) < 2:
            failed.append(1)
            raise OSError("no space left on device")
        return real(*given, **more)

    monkeypatch.setattr(authority, "renew_if_due", renew_if_due)
    async with launch(leaf_lifetime=timedelta(seconds=1), renewal_check_s=0.2) as launcher:
        await launcher.start(spec())
        first = (folder / "cert.pem").read_bytes()
        await until(lambda: (folder / "cert.pem").read_bytes() != first)
        assert list(launcher.running) == ["acme-1"]
    assert "the leaf of acme-1 could not be renewed: OSError" in caplog.text


def is_pair(folder):
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(folder / "cert.pem", folder / "key.pem")
    except ssl.SSLError:
        return False
    return True


def test_it_works_on_uvloop_as_well(launch, folder):
    async def start_and_fail_and_stop():
        async with launch() as launcher:
            with pytest.raises(LaunchError, match="status 3"):
                await launcher.start(spec("fail"))
            running = await launcher.start(spec())
            assert is_running(running.pid)
            return running.pid

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert not is_running(runner.run(start_and_fail_and_stop()))


PARENT = """
import asyncio, sys
from pathlib import Path
from regions.identity.authority import CertificateAuthority
from tests.regions.launchers.test_local import FAKE, spec
from regions.launchers.local import LocalLauncher

async def main(data):
    launcher = LocalLauncher(Path(data), CertificateAuthority.open(Path(data) / "ca", "demo"), command=FAKE, grace_s=1)
    running = await launcher.start(spec(sys.argv[2]))
    print(running.pid, flush=True)
    await asyncio.sleep(3600)

asyncio.run(main(sys.argv[1]))
"""


@pytest.mark.parametrize("behave", ["well", "stubborn"])
async def test_nothing_is_left_running_when_the_launching_process_is_killed(tmp_path, behave):
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path / "data"), behave], stdout=subprocess.PIPE, text=True
    )
    try:
        pid = int(parent.stdout.readline())
        assert is_running(pid)
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()
    await until(lambda: not is_running(pid))


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux's")
async def test_nothing_is_left_running_when_the_leash_is_killed(launch):
    async with launch() as launcher:
        running = await launcher.start(spec("stubborn"))
        os.kill(psutil.Process(running.pid).ppid(), signal.SIGKILL)
        await until(lambda: not is_running(running.pid))


async def test_who_has_ended_keeps_its_log_and_not_its_key(launch, folder):
    async with launch() as launcher:
        await launcher.start(spec())
        assert (folder / "key.pem").exists()
        await launcher.stop("acme-1")
        assert sorted(each.name for each in folder.iterdir()) == ["backend.log", "seen.json"]


async def test_of_those_that_have_ended_the_oldest_logs_go(launch, folder, monkeypatch):
    monkeypatch.setattr("regions.launchers.local.KEPT_LOGS", 2)
    for number in range(4):
        old = folder.with_name(f"old-{number}")
        old.mkdir(parents=True)
        (old / "backend.log").touch()
        os.utime(old, (number, number))
    alive = folder.with_name("another-gateways")
    alive.mkdir()
    (alive / "key.pem").touch()
    async with launch() as launcher:
        await launcher.start(spec())
        await launcher.stop("acme-1")
    assert sorted(each.name for each in folder.parent.iterdir()) == ["acme-1", "another-gateways", "old-3"]


async def test_a_backend_that_is_to_have_a_card_gets_one_of_its_own(launch, folder):
    def on_card(name):
        return replace(spec(card="h100"), identity=BackendIdentity("demo", "acme", "eu-fr-par", name), options=())

    async with launch(gpus=(4, 7), command=(*FAKE, "--behave", "well")) as launcher:
        await launcher.start(on_card("acme-1"))
        await launcher.start(on_card("acme-2"))
        shown = [seen(folder.with_name(name))["env"]["CUDA_VISIBLE_DEVICES"] for name in ("acme-1", "acme-2")]
        assert shown == ["4", "7"]
        with pytest.raises(LaunchError, match="no GPU of this machine is free"):
            await launcher.start(on_card("acme-3"))
        await launcher.stop("acme-1")
        await launcher.start(on_card("acme-3"))
        assert seen(folder.with_name("acme-3"))["env"]["CUDA_VISIBLE_DEVICES"] == "4"
        assert seen(folder.with_name("acme-3"))["options"]["device"] == "cuda"


async def test_a_backend_of_several_cards_gets_those_that_are_linked_best(launch, folder):
    def on_cards(name, count):
        identity = BackendIdentity("demo", "acme", "eu-fr-par", name)
        options = ("--tensor-parallel-size", str(count))
        return replace(spec(card="h100"), identity=identity, options=options, cards=count)

    links = Topology({(4, 6): 1200, (5, 7): 1200, (4, 5): 40})
    asked = []
    how = {"gpus": (4, 5, 6, 7), "topology": lambda: asked.append(1) or links}
    async with launch(**how, command=(*FAKE, "--behave", "well")) as launcher:
        await launcher.start(on_cards("acme-1", 2))
        await launcher.start(on_cards("acme-2", 2))
        seen_by = [seen(folder.with_name(name)) for name in ("acme-1", "acme-2")]
        assert [each["env"]["CUDA_VISIBLE_DEVICES"] for each in seen_by] == ["4,6", "5,7"]
        assert seen_by[0]["options"]["tensor_parallel_size"] == "2"
        await launcher.stop("acme-2")
        with pytest.raises(LaunchError, match="2 GPUs of this machine are free for acme-3, which needs 4"):
            await launcher.start(on_cards("acme-3", 4))
    assert asked == [1]


async def test_one_without_a_card_sees_none(launch, folder):
    async with launch(gpus=(0,)) as launcher:
        await launcher.start(spec(card="cpu"))
        assert seen(folder)["env"]["CUDA_VISIBLE_DEVICES"] == ""
