"""Backends on a cluster: made, found, scaled, renewed and deleted through an API server that checks each object."""

import asyncio
from base64 import b64decode
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509

from gateway.database.database import Database
from regions.errors import ClusterError, LaunchError
from regions.fleet.launcher import BackendSpec
from regions.identity.authority import CertificateAuthority
from regions.identity.identity import BackendIdentity
from regions.launchers.cluster import Cluster
from regions.launchers.kubernetes import KubernetesLauncher
from regions.launchers.kubernetes_objects import ClusterSettings
from tests.fakes.kubernetes import FakeKubernetes, running
from tests.regions.fleet.test_reconciler import Scene, passes

NAME = "backend-acme-1"


def spec(backend="acme-1", cell="eu-fr", **more):
    tenant = backend.rpartition("-")[0]
    return BackendSpec(BackendIdentity(cell, tenant, "eu-fr-par", backend), Path("/m/llama-8b"), "llama", **more)


@pytest.fixture
async def server(tmp_path):
    fake = FakeKubernetes()
    async with running(fake, tmp_path / "account") as fake.url:
        yield fake


@pytest.fixture
async def cluster(server, tmp_path, monkeypatch):
    monkeypatch.setattr("regions.launchers.cluster.FIRST_PAUSE_S", 0.01)
    account = tmp_path / "account"
    async with Cluster(
        server.url, "domicile-backends", token_file=account / "token", ca_file=account / "ca.crt"
    ) as made:
        yield made


@pytest.fixture
def authority(tmp_path):
    made = CertificateAuthority.open(tmp_path / "ca", "eu-fr")
    return lambda: made


@pytest.fixture
async def launcher(cluster, tmp_path, authority):
    async with KubernetesLauncher(cluster, tmp_path, authority, ready_within_s=5, poll_s=0.01) as made:
        yield made


async def test_a_started_backend_is_five_objects_and_is_told_when_its_pod_is_ready(server, launcher):
    server.slow_s = 0.1
    said = []
    started = await launcher.start(spec(), progress=said.append)
    assert sorted(kind for kind, _ in server.objects) == [
        "deployments", "networkpolicies", "poddisruptionbudgets", "secrets", "services",
    ]  # fmt: skip
    assert started.backend.url == "https://backend-acme-1.domicile-backends.svc:8443"
    assert started.backend.uri == "spiffe://domicile.eu-fr/tenant/acme/region/eu-fr-par/backend/acme-1"
    assert started.backend.tenant == "acme" and started.backend.models == ("llama",)
    assert dict(launcher.running) == {"acme-1": started} and started.pid is None
    assert said[-1] == "acme-1: ready"


async def test_the_secret_holds_a_leaf_of_this_backend_alone(server, launcher):
    await launcher.start(spec())
    data = server.get("secrets", NAME)["data"]
    leaf = x509.load_pem_x509_certificate(b64decode(data["cert.pem"]))
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == [spec().identity.uri]
    assert "ca.key" not in data


async def test_a_backend_that_answers_only_signed_calls_gets_the_key_with_its_certificate(
    server, cluster, tmp_path, authority
):
    (tmp_path / "requests.pem").write_text("a public key")
    async with KubernetesLauncher(
        cluster, tmp_path, authority, poll_s=0.01, request_key=lambda: tmp_path / "requests.pem"
    ) as launcher:
        await launcher.start(spec())
    assert b64decode(server.get("secrets", NAME)["data"]["requests.pem"]) == b"a public key"
    (container,) = server.get("deployments", NAME)["spec"]["template"]["spec"]["containers"]
    at = container["args"].index("--request-key")
    assert container["args"][at + 1] == "/run/identity/requests.pem"


async def test_stopping_deletes_all_of_it_and_twice_is_harmless(server, launcher):
    await launcher.start(spec())
    await launcher.start(spec("globex-1"))
    await launcher.stop("acme-1")
    await launcher.stop("acme-1")
    assert {name for _, name in server.objects} == {"backend-globex-1"}
    assert list(launcher.running) == ["globex-1"]


async def test_one_that_does_not_go_is_running_still_and_can_be_stopped_again(server, launcher, monkeypatch):
    monkeypatch.setattr("regions.launchers.kubernetes.GONE_WITHIN_S", 0.1)
    await launcher.start(spec())
    server.faults = [500] * 100
    with pytest.raises(LaunchError, match="did not go"):
        await launcher.stop("acme-1")
    assert list(launcher.running) == ["acme-1"], "who forgets it now leaves a card taken for ever"
    server.faults.clear()
    assert await launcher.renew() == [], "its key does not come back meanwhile"
    await launcher.stop("acme-1")
    assert (dict(launcher.running), server.objects) == ({}, {})


async def test_what_somebody_else_deleted_is_told_and_what_a_failed_start_left_is_found(
    server, cluster, tmp_path, authority
):
    changes = []
    launcher = KubernetesLauncher(
        cluster, tmp_path, authority, poll_s=0.01, look_s=0.05, on_change=lambda name, running: changes.append(name)
    )
    other = KubernetesLauncher(cluster, tmp_path, authority, poll_s=0.01)
    async with launcher:
        await launcher.start(spec())
        await other.start(spec("globex-1"))
        server.faults = [500] * 8  # a look that fails is followed by another
        async with asyncio.timeout(10):
            while server.faults or set(launcher.running) != {"acme-1", "globex-1"}:
                await asyncio.sleep(0.02)
            await other.stop("acme-1")
            while set(launcher.running) != {"globex-1"}:
                await asyncio.sleep(0.02)
    assert changes == ["acme-1", "globex-1", "acme-1"]


async def test_a_start_that_is_under_way_is_not_taken_for_a_backend(server, cluster, tmp_path, authority):
    server.slow_s = 0.5
    async with KubernetesLauncher(cluster, tmp_path, authority, poll_s=0.01, look_s=3600) as launcher:
        starting = asyncio.create_task(launcher.start(spec()))
        while ("deployments", NAME) not in server.objects:
            await asyncio.sleep(0.01)
        await launcher.look()
        assert dict(launcher.running) == {}
        await starting
        assert list(launcher.running) == ["acme-1"]


async def test_a_disk_that_is_full_does_not_end_the_renewal_of_leaves(server, cluster, tmp_path, authority, caplog):
    launcher = KubernetesLauncher(cluster, tmp_path, authority, poll_s=0.01, renewal_check_s=0.05)
    real, failed = launcher.renew, []

    async def renew():
        if len(failed) < 2:
            failed.append(1)
            raise OSError("no space left on device")
        launcher.renew = real
        failed.append(2)
        return await real()

    launcher.renew = renew
    async with launcher:
        async with asyncio.timeout(5):
            while 2 not in failed:
                await asyncio.sleep(0.02)
    assert "leaves of backends could not be renewed: OSError" in caplog.text


async def test_a_gateway_that_goes_leaves_backends_to_the_next_which_finds_them_unchanged(
    server, cluster, tmp_path, authority
):
    async with KubernetesLauncher(cluster, tmp_path, authority, poll_s=0.01) as first:
        await first.start(spec())
    generation = server.get("deployments", NAME)["metadata"]["generation"]
    async with KubernetesLauncher(cluster, tmp_path, authority, poll_s=0.01) as second:
        assert not second.running
        await second.adopt()
        assert second.running["acme-1"].backend == first.running["acme-1"].backend
        await second.start(spec())
    assert server.get("deployments", NAME)["metadata"]["generation"] == generation, "its pod is not replaced"


async def test_only_backends_of_this_cell_are_adopted_and_all_pages_are_read(
    server, launcher, cluster, tmp_path, authority
):
    for number in range(5):
        await launcher.start(spec(f"acme-{number}"))
    strange = {**server.get("deployments", NAME)}
    strange = {**strange, "metadata": {**strange["metadata"], "labels": {"app.kubernetes.io/managed-by": "domicile"}}}
    server.objects["deployments", "strange"] = strange
    async with KubernetesLauncher(cluster, tmp_path, authority) as other:
        await other.adopt()
        assert list(other.running) == [f"acme-{number}" for number in range(5)]


async def test_scaling_to_zero_keeps_the_objects_and_back_waits_for_the_pod(server, launcher):
    await launcher.start(spec())
    await launcher.scale("acme-1", 0)
    assert server.get("deployments", NAME)["spec"]["replicas"] == 0
    server.slow_s = 0.1
    await launcher.scale("acme-1", 1)
    assert server.get("deployments", NAME)["status"]["availableReplicas"] == 1
    assert server.calls.count("patch deployments/scale") == 2
    with pytest.raises(LaunchError, match="no Deployment"):
        await launcher.scale("acme-9", 1)


async def test_a_pod_that_never_gets_ready_is_refused_with_the_cluster_s_reason_and_nothing_stays(server, launcher):
    server.stuck = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu"
    with pytest.raises(LaunchError, match=r"Insufficient nvidia\.com/gpu"):
        await launcher.start(spec(card="h100"))
    assert server.objects == {} and not launcher.running


async def test_a_failed_update_leaves_the_backend_that_ran(server, launcher):
    await launcher.start(spec())
    server.stuck = "the new image cannot be pulled"
    with pytest.raises(LaunchError, match="cannot be pulled"):
        await launcher.start(spec(threads=3))
    assert server.get("deployments", NAME) is not None, "its old pod goes on"


async def test_a_start_that_is_cancelled_leaves_nothing(server, launcher):
    server.slow_s = 60
    starting = asyncio.create_task(launcher.start(spec()))
    async with asyncio.timeout(5):
        while server.get("deployments", NAME) is None:
            await asyncio.sleep(0.01)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert server.objects == {}


async def test_what_may_succeed_later_is_tried_again(server, launcher):
    server.faults = [500, None, 409]
    assert (await launcher.start(spec())).backend.id == "acme-1"


async def test_what_is_forbidden_is_not_and_the_reason_is_the_server_s(server, launcher):
    server.rules = [rule for rule in server.rules if rule[1] != "networkpolicies"]
    with pytest.raises(LaunchError, match="403 cannot patch networkpolicies"):
        await launcher.start(spec())
    assert server.calls.count("patch networkpolicies") == 1
    assert ("secrets", NAME) not in server.objects


async def test_the_role_of_a_gateway_is_what_it_uses_and_no_more(server, launcher):
    """Every rule of deploy/ but the two of scripts and people is used here, and none is missing."""
    await launcher.start(spec())
    await launcher.scale("acme-1", 1)
    await launcher.adopt()
    await launcher.stop("acme-1")
    used = {tuple(call.split()) for call in server.calls}
    allowed = {(verb, resource) for _, resource, verb in server.rules}
    assert used <= allowed
    unused = {(verb, resource) for verb, resource in allowed - used if verb not in ("get", "list")}
    assert {verb for verb, _ in unused} <= {"create"}, unused  # an apply of what is not there counts as one


async def test_leaves_are_renewed_in_their_last_third_and_applied(server, cluster, tmp_path, authority):
    launcher = KubernetesLauncher(
        cluster, tmp_path, authority, poll_s=0.01, renewal_check_s=0.05, leaf_lifetime=timedelta(seconds=1)
    )
    async with launcher:
        await launcher.start(spec())
        first = server.get("secrets", NAME)["data"]["cert.pem"]
        pods = server.get("deployments", NAME)["metadata"]["generation"]
        server.faults = [500] * 4  # a look that fails is followed by another
        async with asyncio.timeout(10):
            while server.get("secrets", NAME)["data"]["cert.pem"] == first:
                await asyncio.sleep(0.02)
        assert not server.faults
        assert server.get("deployments", NAME)["metadata"]["generation"] == pods, "no pod is replaced for it"


async def test_a_token_that_kubelet_replaced_is_used(server, cluster, tmp_path):
    (tmp_path / "account" / "token").write_text("old")
    with pytest.raises(ClusterError, match="401"):
        await cluster.get("Deployment", NAME)
    (tmp_path / "account" / "token").write_text("a-pod-s-token")
    assert await cluster.get("Deployment", NAME) is None


async def test_a_server_of_another_authority_gets_no_token(server, tmp_path):
    from tests.backend.certificates import Authority

    Authority(tmp_path / "other")
    token, ca = tmp_path / "account" / "token", tmp_path / "other" / "ca.pem"
    async with Cluster(server.url, "domicile-backends", token_file=token, ca_file=ca) as cluster:
        with pytest.raises(ClusterError, match=r"(?i)certificate"):
            await cluster.get("Deployment", NAME)
    assert server.calls == []


def test_plain_http_is_refused_and_outside_of_a_pod_it_says_so(tmp_path, monkeypatch):
    with pytest.raises(ClusterError, match="not https"):
        Cluster("http://10.0.0.1", "x", token_file=tmp_path / "t", ca_file=tmp_path / "c")
    with pytest.raises(ClusterError, match="CA"):
        Cluster("https://10.0.0.1", "x", token_file=tmp_path / "t", ca_file=tmp_path / "c")
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ClusterError, match="not a pod"):
        Cluster.of_this_pod("x", tmp_path)


# --- led by a reconciler ---------------------------------------------------------------------------------------------


@pytest.fixture
def scene(tmp_path):
    database = Database.open(tmp_path / "data")
    yield Scene(database)
    database.close()


@asynccontextmanager
async def leading(scene, node, cluster, tmp_path, authority, settings=None):
    """A gateway that may lead, with a launcher of its own; leaving is its end."""
    async with KubernetesLauncher(
        cluster, tmp_path, lambda: authority, settings, ready_within_s=5, poll_s=0.01
    ) as launcher:
        reconciler = scene.gateway(node, launcher)
        yield reconciler
        await reconciler.close()


async def test_the_next_leader_goes_on_with_the_backends_of_the_last(scene, server, cluster, tmp_path):
    authority = CertificateAuthority.open(tmp_path / "ca", "demo")
    scene.wish()
    async with leading(scene, "one", cluster, tmp_path, authority) as one:
        await passes(one)
        (replica,) = scene.replicas()
        assert replica.state == "ready"
    assert scene.replicas()[0].state == "ready", "it was not stopped with its gateway"
    assert scene.offered() == [replica.id]
    async with leading(scene, "two", cluster, tmp_path, authority) as two:
        await passes(two, 2)
        assert [each.id for each in scene.replicas()] == [replica.id], "none is started in its place"
        assert scene.told() == ["replica.starting", "replica.ready"]
        scene.control.delete_deployment("acme", "small")
        await passes(two, 2)
    assert not scene.replicas() and server.objects == {}


async def test_what_the_cluster_keeps_and_nobody_knows_is_stopped(scene, server, cluster, tmp_path):
    authority = CertificateAuthority.open(tmp_path / "ca", "demo")
    async with KubernetesLauncher(cluster, tmp_path, lambda: authority, poll_s=0.01) as lost:
        await lost.start(spec(cell="demo"))
    scene.wish(min_replicas=0)
    async with leading(scene, "one", cluster, tmp_path, authority) as one:
        await passes(one)
        assert server.objects == {}


async def test_a_leader_that_loses_its_lease_leaves_the_backends_to_the_next(scene, server, cluster, tmp_path):
    authority = CertificateAuthority.open(tmp_path / "ca", "demo")
    scene.wish()
    async with leading(scene, "one", cluster, tmp_path, authority) as one:
        await passes(one)
        one._store.lead = lambda: None
        await passes(one)
        assert len([kind for kind, _ in server.objects if kind == "deployments"]) == 1


def image(server):
    (deployment,) = [object for (kind, _), object in server.objects.items() if kind == "deployments"]
    return deployment["spec"]["template"]["spec"]["containers"][0]["image"]


async def test_after_an_upgrade_the_next_leader_updates_what_runs_while_it_answers(scene, server, cluster, tmp_path):
    authority = CertificateAuthority.open(tmp_path / "ca", "demo")
    scene.wish()
    async with leading(scene, "one", cluster, tmp_path, authority) as one:
        await passes(one)
        before = image(server)
    newer = ClusterSettings(image="domicile-backend:0.2.0")
    async with leading(scene, "two", cluster, tmp_path, authority, newer) as two:
        server.slow_s = 0.3
        (name,) = scene.offered()
        await two.reconcile()
        await two.reconcile()
        assert scene.offered() == [name], "it answers while its pod is replaced"
        await two.settled()
        assert (before, image(server)) == ("domicile-backend:0.1.0", "domicile-backend:0.2.0")
        applied = len([call for call in server.calls if call.startswith("patch")])
        await passes(two, 3)
        assert len([call for call in server.calls if call.startswith("patch")]) == applied, "once is enough"
    assert scene.told() == ["replica.starting", "replica.ready"]


async def test_an_update_that_fails_leaves_what_answers(scene, server, cluster, tmp_path):
    authority = CertificateAuthority.open(tmp_path / "ca", "demo")
    scene.wish()
    async with leading(scene, "one", cluster, tmp_path, authority) as one:
        await passes(one)
    server.stuck = "ImagePullBackOff"
    async with leading(scene, "two", cluster, tmp_path, authority, ClusterSettings(image="no-such:1")) as two:
        await passes(two, 2)
        assert len(scene.offered()) == len(scene.replicas()) == 1
    assert scene.told() == ["replica.starting", "replica.ready"]


async def test_a_start_that_its_leader_did_not_live_to_see_is_seen_by_the_next(scene, server, cluster, tmp_path):
    authority = CertificateAuthority.open(tmp_path / "ca", "demo")
    scene.wish()
    server.slow_s = 0.2
    launcher = KubernetesLauncher(cluster, tmp_path, lambda: authority, ready_within_s=5, poll_s=0.01)
    one = scene.gateway("one", launcher)
    await one.reconcile()
    while not [kind for kind, _ in server.objects if kind == "deployments"]:
        await asyncio.sleep(0.01)
    (task,) = one._acting.values()
    real, launcher._delete = launcher._delete, None  # killed: nothing is tidied up
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await asyncio.to_thread(one._store.resign)
    launcher._delete = real
    async with leading(scene, "two", cluster, tmp_path, authority) as two:
        await passes(two)
        (replica,) = scene.replicas()
        assert (replica.state, scene.offered()) == ("ready", [replica.id])
    assert scene.told() == ["replica.starting", "replica.ready"]


@pytest.fixture
async def signed(cluster, tmp_path, authority):
    """A launcher whose backends answer signed calls alone."""
    (tmp_path / "requests.pem").write_text("a public key")
    async with KubernetesLauncher(
        cluster, tmp_path, authority, ready_within_s=5, poll_s=0.01, request_key=lambda: tmp_path / "requests.pem"
    ) as made:
        yield made


@pytest.mark.parametrize(
    ("address", "transfer"), [("10.96.0.7", "10.96.0.7:8444"), ("fd00::7", "[fd00::7]:8444")], ids=["4", "6"]
)
async def test_a_pair_is_started_with_the_address_for_its_blocks_and_found_again(
    server, signed, cluster, tmp_path, authority, address, transfer
):
    server.address = address
    for number, role in enumerate(("prefill", "decode", "mixed")):
        await signed.start(spec(f"acme-{number}", role=role))
    found = [(each.backend.role, each.backend.transfer) for each in signed.running.values()]
    assert found == [("prefill", transfer), ("decode", None), ("mixed", None)]
    async with KubernetesLauncher(cluster, tmp_path, authority) as other:
        await other.adopt()
        assert dict(other.running) == dict(signed.running)
    async with KubernetesLauncher(cluster, tmp_path, authority) as third:
        await third.look()
        assert dict(third.running) == dict(signed.running)


async def test_a_service_without_an_address_is_a_start_that_failed(server, signed):
    server.address = "None"
    with pytest.raises(LaunchError, match="has no address"):
        await signed.start(spec(role="prefill"))
    assert server.objects == {} and not signed.running


async def test_one_of_a_pair_is_not_started_where_calls_are_not_signed(server, launcher):
    with pytest.raises(LaunchError, match="signed calls"):
        await launcher.start(spec(role="decode"))
    assert server.objects == {}
