"""What a gateway tells of its backends: who each is, and nothing that it could say of another."""

import re

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.server.monitoring.backend_metrics import MAX_SAMPLES, Labelled, labelled
from gateway.workers.metrics import written
from tests.deploy.test_files import of_a_backend_text
from tests.fakes.backend import FakeBackend
from tests.fakes.lab import lab
from tests.regions.fleet.test_fleet import backend

ACME, GLOBEX = backend(), backend("globex-1", "globex")
TOLD = of_a_backend_text()
VLLM = 'vllm:num_requests_running{model_name="jan@example.org"} 3.0\nvllm:num_requests_waiting 2.0\nother_total 9\n'


def metrics(*backends, **said):
    texts = {name.replace("_", "-"): text.encode() if text is not None else None for name, text in said.items()}
    listed = [Labelled(each, (each.tenant, each.region, "small", each.id, "0a1b2c3d")) for each in backends]
    return samples(written(labelled(listed, texts)))


def samples(text):
    """{(name, labels): value}"""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def named(found, name, **labels):
    return [v for (n, ls), v in found.items() if n == name and labels.items() <= dict(ls).items()]


def test_all_that_a_backend_tells_is_told_on_with_who_it_is():
    one = ACME
    found = metrics(one, acme_1=TOLD)
    who = {"tenant": "acme", "region": "eu-fr-par", "deployment": "small", "backend": "acme-1", "replica": "0a1b2c3d"}
    assert all(who.items() <= dict(labels).items() for _, labels in found)
    told = {name for name in re.findall(r"^([a-z_0-9]+)", TOLD, re.MULTILINE) if not name.endswith("_created")}
    renamed = {re.sub("^gen_ai_server_", "domicile_backend_", name) for name in told}
    assert {name for name, _ in found} == renamed | {"domicile_backend_up"}
    assert named(found, "domicile_backend_up") == [1.0]
    assert named(found, "domicile_backend_time_to_first_token_seconds_count", gen_ai_request_model="m") == [1.0]


def test_no_name_of_a_gateways_own_is_told_of_a_backend():
    found = metrics(ACME, acme_1=TOLD + "domicile_requests_total 7\nup 0\n")
    assert all(name.startswith("domicile_backend_") for name, _ in found)


def test_what_it_says_under_our_labels_or_of_being_up_is_not_believed():
    lie = (
        'domicile_backend_engine_up{tenant="globex",backend="other",replica="x"} 1.0\n'
        'domicile_backend_up{backend="globex-1"} 1.0\n'
    )
    found = metrics(ACME, acme_1=lie)
    assert {dict(labels)["tenant"] for _, labels in found} == {"acme"}
    assert {dict(labels)["backend"] for _, labels in found} == {"acme-1"}


@pytest.mark.parametrize(
    "text",
    [
        None,
        "domicile_backend_engine_up{ 1.0\n",
        "domicile_backend_engine_up one\n",
        "\x00\xff{}",
        "".join(f'domicile_backend_engine_up{{n="{n}"}} 1\n' for n in range(MAX_SAMPLES + 1)),
    ],
    ids=["none", "torn", "no number", "no text", "too many"],
)
def test_one_that_says_nothing_that_can_be_read_is_down_and_the_others_are_told(text):
    found = metrics(ACME, GLOBEX, acme_1=text, globex_1=TOLD)
    assert named(found, "domicile_backend_up", backend="acme-1") == [0.0]
    assert [dict(labels)["backend"] for name, labels in found if dict(labels)["backend"] != "globex-1"] == ["acme-1"]
    assert named(found, "domicile_backend_engine_up", backend="globex-1") == [1.0]


def test_two_backends_stand_under_one_name_and_type():
    listed = [ACME, backend("acme-2")]
    texts = {each.id: TOLD.encode() for each in listed}
    text = written(labelled([Labelled(each, ("acme", "r", "", each.id, "")) for each in listed], texts))
    kinds = re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)
    assert len(kinds) == len(set(kinds))
    assert len(named(samples(text), "domicile_backend_sequences_running")) == 2


def test_a_name_that_comes_as_another_kind_of_metric_leaves_the_text_whole():
    odd = "# TYPE domicile_backend_sequences_running counter\ndomicile_backend_sequences_running_total 5\n"
    found = metrics(ACME, backend("acme-2"), acme_1=TOLD, acme_2=odd)
    assert len(named(found, "domicile_backend_sequences_running")) == 1


def test_of_a_server_that_is_not_our_engine_the_queue_is_told_and_nothing_that_it_names():
    theirs = backend("acme-vllm").model_copy(update={"kind": "openai"})
    found = metrics(theirs, acme_vllm=VLLM)
    assert named(found, "domicile_backend_sequences_running") == [3.0]
    assert named(found, "domicile_backend_sequences_waiting") == [2.0]
    assert {name for name, _ in found} == {
        "domicile_backend_up", "domicile_backend_sequences_running", "domicile_backend_sequences_waiting",
    }  # fmt: skip
    assert "example.org" not in str(found)


async def test_a_gateway_tells_them_to_operators_alone(tmp_path):
    backends = {
        "acme/eu-fr-par/acme-1": FakeBackend(metrics=TOLD),
        "acme/eu-fr-par/acme-2": FakeBackend(),
    }
    async with lab(tmp_path, backends=backends) as made:
        answer = await made.get("/metrics/cell")
        found = samples(answer.body.decode())
        own = (await made.get("/metrics")).body.decode()
    assert answer.status == 200 and answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert named(found, "domicile_backend_up", backend="acme-1", deployment="", replica="") == [1.0]
    assert named(found, "domicile_backend_up", backend="acme-2") == [0.0]
    assert named(found, "domicile_backend_gpu_power_watts", tenant="acme") == [300.0]
    assert "domicile_backend_" not in own


async def test_others_find_nothing_there(tmp_path):
    async with lab(tmp_path, listen={"operations_from": ["192.0.2.0/24"]}) as made:
        assert (await made.get("/metrics/cell")).status == 404
