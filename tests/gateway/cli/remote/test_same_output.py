"""The same commands on a data folder and over the admin API of a gateway: the same output, word for word.

Identifiers, times and secrets differ by nature: each is replaced by what it stands for.
"""

import asyncio
import json
import re
import shlex
from datetime import UTC, date, datetime, timedelta

import pytest
import typer
from typer.testing import CliRunner

from gateway.cli.app import app
from regions.catalogue.own_places import with_place
from regions.fleet.deployment import Deployment
from tests.backend.certificates import Authority
from tests.fakes.lab import lab, open_control

DOCUMENT = "policy: acme\nversion: 1\nresidency: {process_in: EEA, store_in: EEA}\n"
CATALOGUE = with_place(
    None,
    {"id": "eu-office", "name": "Office", "compute_country": "DE", "storage_country": "DE", "operator": "acme-it",
     "valid_from": date(2026, 11, 1), "source": "HRB 1 Bonn"},
    {"id": "acme-it", "entity": "Acme IT GmbH", "head_office": "DE", "ultimate_parent": "Acme IT GmbH",
     "parent_country": "DE", "valid_from": date(2026, 11, 1), "source": "HRB 1 Bonn"},
    date(2026, 11, 1),
)  # fmt: skip
TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|\+00:00)?")
ACTOR = re.compile(r"\b(cli|key:\w+)\b")
SECRET = re.compile(r"dom_(live|admin)_\w+")

STEPS = """
tenant create acme --name Acme
tenant create globex --json
!tenant create acme
tenant list
tenant list --json
tenant show acme
!tenant show nope
project create acme support --purpose 'customer support' --legal-basis contract --data-class contact --json
project create acme other --purpose x --legal-basis contract --risk-class limited --ai-system-id cv
~project create acme bad --purpose x --legal-basis whim
project list acme
project show acme support --json
project update acme support --origin https://app.example.org
key create acme support --label web --network 10.0.0.0/8 --model m --json =key:id
key create acme support --expires-in-days 9 --json =second:id
key list acme
key list acme --project other --json
key show acme {key}
~key show acme nope
key rotate acme {key} --grace-hours 2 --json =next:id
key revoke acme {next} --yes
backend create acme vllm --region eu-fr-par --url https://10.0.0.7 --model large --model small --ca {ca}
model create acme support assistant --target large --target small --default temperature=0.2
!model create acme support assistant --target small
model update acme support assistant --target small --deprecated 2027-01-01 --sunset 2027-06-30 --json
!model update acme support nobody --target small
model list acme
model show acme support assistant --json
model delete acme support assistant --yes
adapter create acme support legal --model large --path legal/v2 --sha256 {sha}
!adapter create acme support legal --model large --path legal/v2 --sha256 {sha}
!adapter create acme support other --model nothing --path x --sha256 {sha}
adapter create acme other tax --model small --path tax --sha256 {sha} --json
adapter list acme
adapter list acme --project support --json
!adapter list acme --project nope
adapter show acme support legal --json
!adapter show acme support nobody
adapter delete acme support legal --yes
!adapter delete acme support legal --yes
region list
region list --on 2026-11-27 --json
region show eu-fr-par
region show eu-fr-par --json
region show eu-office
!region show atlantis
limit update acme --rpm 60 --eur-per-month 5.5
limit update acme --project support --tpm 1000 --json
limit update acme --rpm none
limit show acme
limit show acme --key {key} --json
limit list acme
!limit list nope
person create acme 'Ada Lovelace' --role tenant-admin --json =ada:id
person create acme 'Grace Hopper' --role dpo --role auditor --json =grace:id
person create operator 'Staff' --role auditor --json =staff:id
person list acme
person list
person update acme {ada} --role tenant-admin --role billing
person create-token acme {ada} --label laptop --days 3 --json =adas:token =token:id
person create-token acme {grace} --json =graces:token =gtoken:id
!person vouch acme NOBODY00 --yes
person list-tokens acme {ada}
person revoke-token acme {ada} {token} --yes --json
person create-token acme {ada} --json =adas:token =atoken:id
policy submit acme {file} --json @adas
policy submit acme {file} @graces
policy approve acme 1 @graces
!policy approve acme 2 @graces
policy activate acme --proposal 1 @adas
policy diff acme {file}
policy diff acme {tight}
policy diff acme {tight} --json
~policy diff acme {ca}
policy simulate acme {tight}
policy simulate acme {tight} --since 2026-11-01 --json
policy simulate acme --no-dpf-accepted --json
policy explain acme support --model large
policy explain acme support --model large --file {tight} --json
!policy explain acme nope --model large
policy list acme
policy show acme --json
policy show acme
policy history acme
policy history acme --json
policy withdraw acme 2 --reason 'the wrong file' @graces
!policy rollback acme @adas
oversight stop acme --system cv --reason wrong_answers
oversight list acme
oversight resume acme --system cv --json
backend create acme cloud --region eu-fr-par --url https://api.example --model m --managed --refuse-changed-key --json
!backend create acme other --region nowhere --url https://10.0.0.7:8000 --model m --ca {ca}
backend update acme cloud --accept-key {sha} --json
backend list acme
backend revoke acme vllm --yes
deployment list acme
deployment show acme small
deployment show acme small --json
deployment update acme small --weights-sha256 {sha}
deployment scale acme small --idle-s 9
deployment sleep acme small --json
deployment wake acme small --json
deployment drain acme small --json
deployment delete acme small --yes
batch list
batch list acme --json
!batch list nope
!batch show batch_nope
!batch cancel batch_nope
usage show
usage show acme --by day --json
usage cost
usage cost acme --by model --since 2026-11-01 --json
usage export
usage export acme --json
usage export acme --since 2026-11-01
~usage export nope
usage create-price m --input 0.02 --output 0.05 --json
usage list-prices
project revoke acme other --yes
person revoke acme {ada} --yes
tenant revoke globex --yes
"""

"""`!`: it fails, with the same words; `~`: with other words, since the API's schema or its privacy refuses it.
`=name:field` keeps a field of the output, `@name` runs it as the person whose token that is."""


class Shell:
    """Runs commands for one installation, on its folder or as somebody who logged in to it."""

    def __init__(self, tmp_path, name, obj=None):
        self.home, self.values, self.folder, self.obj = tmp_path / name, {}, None, obj
        self.url = None

    def run(self, words, token=None):
        # The token of the operator is what a login keeps for this home; that of a person, for another one.
        home = self.home / (token or "operator")
        environment = {"XDG_CONFIG_HOME": str(home), "DOMICILE_TOKEN": self.values.get(token, "")}
        environment["DOMICILE_DATA" if self.url is None else "DOMICILE_URL"] = str(self.folder or self.url)
        if self.url is not None and token is not None and not home.exists():
            self.login(self.values[token], home)
        return CliRunner().invoke(app, words, obj=self.obj, env=environment | {"COLUMNS": "200"})

    def login(self, token, home):
        words = ["login", "--url", self.url, "--token-file", "-"]
        said = CliRunner().invoke(app, words, input=token + "\n", env={"XDG_CONFIG_HOME": str(home)})
        assert said.exit_code == 0, said.output

    def step(self, line):
        words, *more = re.split(r" (?=[=@][\w.]+)", line)
        token = next((each[1:] for each in more if each[0] == "@"), None)
        parts = [word.format(**self.values) for word in shlex.split(words)]
        said = self.run(parts, token)
        for each in more:
            if each[0] == "=":
                name, field = each[1:].split(":")
                self.values[name] = _at(json.loads(said.stdout), field)
        if four := re.search(r'"last_four": "(.{4})"', said.stdout):
            self.values[f"four{len(self.values)}"] = four[1]
        told = [one for one in said.stderr.splitlines() if not one.startswith("next: ")]  # for people at the folder
        return said.exit_code, self.plain(said.stdout), self.plain("\n".join(told))

    def plain(self, text):
        text = SECRET.sub("<secret>", text)
        for name, value in sorted(self.values.items(), key=lambda item: -len(item[1])):
            if name not in ("file", "tight", "ca", "sha"):
                text = re.sub(rf"(?<!\w){re.escape(value)}(?!\w)", f"<{name}>", text)
        return re.sub(r" +", " ", ACTOR.sub("<actor>", TIME.sub("<time>", text)))


def _at(said, path):
    """What stands in a JSON value at ``field`` or ``list.0.field``."""
    for part in path.split("."):
        said = said[int(part) if part.isdigit() else part]
    return said


def leaves_of(command, words=()):
    """The whole name of each command below `command`."""
    below = getattr(command, "commands", None)
    if below is None:
        return {" ".join(words)}
    return {leaf for name in below if not below[name].hidden for leaf in leaves_of(below[name], (*words, name))}


def compared_in(steps):
    """The commands, of all there are, that the lines run."""
    lines = [" ".join(line.lstrip("~!").split()) + " " for line in steps.strip().splitlines()]
    return {
        leaf for leaf in leaves_of(typer.main.get_command(app)) if any(line.startswith(leaf + " ") for line in lines)
    }


def deployed(control):
    control.create_deployment(Deployment(tenant="acme", id="small", model="m", weights="w", regions=("eu-fr-par",)))


@pytest.fixture
def given(tmp_path):
    file = tmp_path / "acme.yaml"
    file.write_text(DOCUMENT)
    tight = tmp_path / "tight.yaml"
    tight.write_text(DOCUMENT.replace("version: 1", "version: 2").replace("store_in: EEA", "store_in: [FR]"))
    return {"file": str(file), "tight": str(tight), "ca": str(Authority(tmp_path / "ca").cert), "sha": "0" * 64}


async def test_each_command_says_the_same_on_a_folder_and_over_the_api(tmp_path, given):
    here, there = Shell(tmp_path, "here"), Shell(tmp_path, "there")
    here.values.update(given)
    there.values.update(given)
    here.folder = tmp_path / "local" / "data"
    local = await asyncio.to_thread(open_control, here.folder)
    async with lab(tmp_path / "served", set_up=lambda made: None, backends={}, approvals={"wait_hours": 0}) as made:
        there.url = made.base
        for folder in (here.folder, made.data):  # one of their own: that of the package is on every host
            (folder / "catalogue.yaml").write_text(CATALOGUE)
        operator = made.control.create_person(None, "Operator", ["operator"])
        here.values["operator"] = local.create_person(None, "Operator", ["operator"]).id
        there.values["operator"] = operator.id
        token = _token(made.control, operator)
        await asyncio.to_thread(there.login, token, there.home / "operator")
        different = []
        for line in STEPS.strip().splitlines():
            if line == "deployment list acme":
                deployed(local)
                deployed(made.control)
            one, two = [await asyncio.to_thread(each.step, line.lstrip("~!")) for each in (here, there)]
            failed = line[0] in "~!"
            if (one[0] != 0) != failed or (two[0] != 0) != failed or (one != two and line[0] != "~"):
                different.append(f"{line}\n{one}\n{two}")
    assert not different, "\n\n".join(different)


def _token(control, person):
    return control.create_token(None, person.id, expires_at=datetime.now(UTC) + timedelta(days=1))[1].token
