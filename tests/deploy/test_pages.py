"""The blocks of the pages for a DPO, an auditor and an operator, word for word, beside a gateway that answered calls,
and what their tables list, compared with what there is."""

import asyncio
import json
import re
from pathlib import Path

import yaml

from audit.storage.sqlite import SqliteReader
from backend.models.checkpoints.demo import find_demo_model
from gateway.configuration.settings import load_settings
from tests.deploy.test_operations import shell
from tests.fakes.lab import POLICY, chat, lab

TREE = Path(__file__).parents[2]
KEEPING = POLICY.replace("content: none", 'content: "encrypted, 30d"')
RULES = yaml.safe_load((TREE / "deploy" / "prometheus" / "rules.yaml").read_text())


def page(name):
    return (TREE / "docs" / name).read_text(encoding="utf-8")


def blocks(name, language="bash"):
    return re.findall(rf"^```{language}\n(.*?)^```$", page(name), re.MULTILINE | re.DOTALL)


def set_up(made):
    made.tenant("acme", KEEPING)
    made.tenant("bank")


def call_about(made, person):
    return made.post(chat("When does my parcel come?"), headers={"x-domicile-subject": person})


async def paste(script, made, folder, **variables):
    return await asyncio.to_thread(shell, f"cd '{folder}'\n{script}", DOMICILE_DATA=made.data, **variables)


async def signed(made):
    """Returns once the record of acme's calls is under a signed checkpoint, which takes the gateway a second."""
    async with asyncio.timeout(30):
        while not has_checkpoint(made.data / "audit" / "log.db"):
            await asyncio.sleep(0.1)


def has_checkpoint(log):
    reader = SqliteReader.open(log)
    try:
        return reader.last_checkpoint("acme") is not None
    finally:
        reader.close()


async def test_a_dpo_answers_a_person_and_a_breach_by_the_page(tmp_path):
    received, access, restrict, erase, dry_run, hold, breach, export, detect, measure, find = blocks("for-the-dpo.md")
    async with lab(tmp_path, set_up=set_up) as made:
        for person in ("alice@example.com", "bob@example.com"):
            assert (await call_about(made, person)).status == 200
        assert "running" in await paste(received, made, tmp_path)
        await paste(access, made, tmp_path)
        assert "parcel" in (tmp_path / "access.html").read_text()
        await paste(restrict, made, tmp_path)
        await paste(erase, made, tmp_path)
        assert (tmp_path / "certificate.note").read_text()
        gone = await asyncio.to_thread(shell, f"{access.split(' >')[0]} || true", DOMICILE_DATA=made.data)
        assert "parcel" not in gone
        await paste(access.replace("alice", "bob"), made, tmp_path)
        assert "parcel" in (tmp_path / "access.html").read_text(), "another person's values stay"
        assert await paste(dry_run, made, tmp_path)
        assert "litigation" in await paste(hold, made, tmp_path)
        said = await paste(breach, made, tmp_path)
        assert "gdpr" in said
        assert (tmp_path / "notification.txt").read_text()
        await signed(made)
        await paste(export, made, tmp_path)
        (tmp_path / "letter.txt").write_text("Your parcel is on its way to you. " * 20)
        # Nothing was marked under this policy, which grep's exit code 2 says too.
        tested = await paste(
            f"{detect.strip().replace('--project support', '--project main')} || test $? = 2", made, tmp_path
        )
        assert "Nothing could be tested" in tested
        measured = measure.strip().replace("models/writer", str(find_demo_model()))
        assert "Too few texts" in await paste(f"{measured} || test $? = 2", made, tmp_path)
        found = await paste(f"{find.strip()} || test $? = 1", made, tmp_path)
        assert "No answer on record has a passage of this text" in found
        kinds = {event["type"] for event in made.events("acme")}
        of_the_other = {event["type"] for event in made.events("bank")}
    acts = {
        "dsar.received",
        "dsar.answered",
        "dsar.restricted",
        "erasure.completed",
        "legal_hold.placed",
        "incident.opened",
        "log.exported",
        "content.answer_searched",
    }
    assert acts <= kinds
    assert not {
        kind for kind in of_the_other if kind.startswith(("dsar", "erasure", "legal_hold", "incident", "log.exported"))
    }


async def test_an_auditor_checks_pack_log_and_receipt_by_the_page(tmp_path):
    export, check, verify, receipt, challenge = blocks("for-the-auditor.md")
    async with lab(tmp_path, set_up=set_up) as made:
        answer = await call_about(made, "alice@example.com")
        key = made.data / "audit" / "signer.vkey"
        await signed(made)
        await paste(export, made, tmp_path)
        assert "holds" in await paste(check, made, tmp_path, KEY=key)
        assert "holds" in await paste(verify, made, tmp_path, KEY=key)
        assert await paste(receipt, made, tmp_path, RECEIPT=answer.headers["x-domicile-receipt"])
    assert "audit challenge acme REQUEST" in challenge  # run by tests/gateway/test_commitments.py, with a real engine


async def test_an_operator_asks_a_gateway_how_it_is_by_the_page(tmp_path):
    alive, metrics = blocks("monitoring.md")
    async with lab(tmp_path, set_up=set_up) as made:
        assert (await made.post(chat("hi"))).status == 200
        assert "ready" in await paste(alive, made, tmp_path, GATEWAY=made.base)
        assert "domicile_requests_total" in await paste(metrics, made, tmp_path, GATEWAY=made.base)


async def test_an_operator_backs_up_and_checks_before_and_after_an_upgrade_by_the_page(tmp_path):
    before, check, after = blocks("upgrade.md")
    (tmp_path / "config.yaml").write_text("listen: {port: 8400}\n")
    async with lab(tmp_path, set_up=set_up) as made:
        assert (await made.post(chat("hi"))).status == 200
        await paste(before, made, tmp_path, BACKUPS=tmp_path)
        assert (tmp_path / "before" / "manifest.note").exists()
        await paste(check, made, tmp_path)
        assert "holds" in await paste(after, made, tmp_path)


def test_a_model_is_planned_by_the_page(tmp_path):
    assert find_demo_model()
    (plan,) = blocks("sizing.md")
    assert re.search(r"^verdict +it fits$", shell(plan, DOMICILE_DATA=tmp_path), re.MULTILINE)


def alerts():
    return {rule["alert"] for group in RULES["groups"] for rule in group["rules"] if "alert" in rule}


def test_every_alert_is_on_the_page_and_no_other():
    told = re.findall(r"^\| `([A-Z]\w+)` \|", page("monitoring.md"), re.MULTILINE)
    assert sorted(told) == sorted(alerts())


def test_the_scrape_configuration_has_the_jobs_that_alerts_ask_for():
    for name in ("prometheus.yaml", "kubernetes.yaml"):
        text = (TREE / "deploy" / "prometheus" / name).read_text()
        jobs = {each["job_name"] for each in yaml.safe_load(text)["scrape_configs"]}
        assert set(re.findall(r'job="([^"]+)"', json.dumps(RULES).replace("\\", ""))) == jobs
    assert all(f"| `{job}` |" in page("monitoring.md") for job in jobs)


def test_the_webhook_of_the_page_is_accepted():
    (text,) = blocks("monitoring.md", "yaml")
    (hook,) = load_settings(webhooks=yaml.safe_load(text)["webhooks"]).webhooks
    assert hook.name == "ops"


def test_every_file_of_figures_that_sizing_names_is_there_and_its_figures_are_in_it():
    for name in re.findall(r"`([\w-]+\.json)`", page("sizing.md")):
        assert name == "config.json" or (TREE / "bench" / "results" / name).exists(), name
    gateway = result("gateway-2026-11-30.json")["medians"]["domicile"]
    assert f"| {gateway['cpu_us_request'] / 1000:.1f} ms |" in page("sizing.md")
    assert f"| {gateway['cpu_us_event']:.0f} µs |" in page("sizing.md")
    assert f"| {gateway['events_s_c16'] // 1000},000 |" in page("sizing.md")
    scale = result("scale-2026-11-30.json")
    assert scale["constants"]["records_a_call"] == 2
    assert f": {scale['day']['bytes']} of a million" in page("sizing.md")
    assert f"| {scale['day']['records_per_s'] / 100:.0f}00 |".replace("7900", "7,900") in page("sizing.md")
    pack = result("audit-2026-11-29.json")
    assert f"| {pack['append']['sqlite_64_writers_per_s'] / 100:.0f}00 |".replace("8600", "8,600") in page("sizing.md")
    assert f"| {pack['pack']['verify_log_s']:.0f} s of a core |" in page("sizing.md")


def result(name):
    return json.loads((TREE / "bench" / "results" / name).read_text())
