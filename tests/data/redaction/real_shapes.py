"""The set of real shapes: ``python -m tests.data.redaction.real_shapes FILE.jsonl [--seed N] [--rounds N]``.

Whole files as people paste them into prompts, with our own wording: logs in a dozen formats, tables of figures, dumps,
invoices, statutes, changelogs, metrics, code, lock files, chemistry. The variant of a case is its class. None holds
personal data, but for the ones whose class ends in ``+``: there a few values stand among the figures, and are to be
found. Every value is drawn: no number is the same in two seeds.
"""

import random
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta

from faker import Faker

from tests.data.redaction.filling import Case, Spans, options, write
from tests.data.redaction.numbers import number

_WORDS = [
    "scheduler",
    "reader",
    "packet",
    "worker",
    "index",
    "segment",
    "broker",
    "replica",
    "cache",
    "session",
    "queue",
    "writer",
    "cluster",
    "shard",
    "buffer",
    "planner",
]
_VERBS = [
    "received",
    "opened",
    "closed",
    "flushed",
    "started",
    "stopped",
    "renewed",
    "accepted",
    "merged",
    "scanned",
    "expired",
    "allocated",
]
_NAMES = ["Ada", "Ben", "Carla", "Dario", "Edda", "Finn", "Greta", "Hugo", "Ines", "Jonas"]
_SURNAMES = [
    "Lindqvist",
    "Moreau",
    "Kowalczyk",
    "Bergmann",
    "Santoro",
    "Novak",
    "Peeters",
    "Aaltonen",
    "Farkas",
    "Oliveira",
]


class _Draw:
    """Random parts of a file."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.people = Faker("en_GB")
        self.people.seed_instance(rng.getrandbits(32))
        self.moment = datetime(1996, 1, 1) + timedelta(seconds=rng.randrange(30 * 365 * 86_400))

    def tick(self) -> datetime:
        self.moment += timedelta(seconds=self.rng.randrange(1, 400), microseconds=self.rng.randrange(10**6))
        return self.moment

    def digits(self, length: int) -> str:
        return f"{self.rng.randrange(1, 10)}" + "".join(self.rng.choice("0123456789") for _ in range(length - 1))

    def int64(self) -> int:
        return self.rng.choice((1, -1)) * self.rng.getrandbits(63)

    def hexa(self, length: int) -> str:
        return "".join(self.rng.choice("0123456789abcdef") for _ in range(length))

    def decimal(self) -> str:
        kind = self.rng.randrange(4)
        if kind == 0:
            return f"{self.rng.uniform(-180, 180):.{self.rng.randint(4, 9)}f}"
        if kind == 1:
            return repr(self.rng.random())
        if kind == 2:
            return f"{self.rng.gauss(0, 1):.{self.rng.randint(5, 16)}g}"
        return f"{self.rng.expovariate(0.001):.{self.rng.randint(1, 6)}f}"

    def word(self) -> str:
        return self.rng.choice(_WORDS)

    def said(self) -> str:
        begun = f"{self.word()} {self.rng.choice(_VERBS)} {self.rng.choice(('', f'{self.word()} '))}"
        return f"{begun}in {self.rng.randrange(900)} ms"

    def pid(self) -> int:
        return self.rng.choice(
            (self.rng.randrange(10, 400), self.rng.randrange(1000, 32768), self.rng.randrange(10**5, 4 * 10**6))
        )

    def local_address(self) -> str:
        return self.rng.choice(("127.0.0.1", "0.0.0.0", "::1", "localhost", "127.0.1.1", "[::1]", "[::]"))


def _log(draw: _Draw) -> str:
    """One format for all lines, as a program writes it."""
    rng = draw.rng
    host, process = f"node-{rng.randrange(90)}", draw.word()
    pids = [draw.pid() for _ in range(4)]
    formats: tuple[Callable[[datetime], str], ...] = (
        lambda t: f"{t:%y%m%d %H%M%S} {rng.choice(pids)} INFO dfs.{process}: blk_{draw.int64()} {draw.said()}",
        lambda t: (
            f"{t:%m-%d %H:%M:%S}.{t.microsecond // 1000:03}  {rng.choice(pids)}  {draw.pid()} {rng.choice('DIVWE')} "
            f"{process.title()}Service: lock={draw.digits(9)}, flg=0x0, {draw.said()}"
        ),
        lambda t: (
            f"{t:%Y-%m-%d %H:%M:%S},{t.microsecond // 1000:03} INFO [{process}-{rng.randrange(9)}] id={draw.int64()} "
            f"{draw.said()}"
        ),
        lambda t: f"{t:%b %d %H:%M:%S} {host} {process}[{rng.choice(pids)}]: {draw.said()} on {draw.local_address()}",
        lambda t: (
            f"[{t:%a %b %d %H:%M:%S %Y}] [notice] {process}.mpm {rng.choice(pids)} in scoreboard slot "
            f"{rng.randrange(30)}"
        ),
        lambda t: (
            f"{int(t.timestamp())} {t:%Y.%m.%d} {host} {t:%Y-%m-%d-%H.%M.%S}.{t.microsecond:06} {host} RAS KERNEL INFO "
            f"{draw.said()}"
        ),
        lambda t: (
            f"- {int(t.timestamp())} {t:%Y.%m.%d} {host} {t:%b %d %H:%M:%S} {host}/{host} {process}({draw.pid()}): "
            f"{draw.said()}"
        ),
        lambda t: (
            f"{t:%Y%m%d}-{t:%H:%M:%S}:{t.microsecond // 1000}|{process.title()}_Step|{draw.digits(8)}|calculate "
            f"total={draw.digits(8)} ts={int(t.timestamp() * 1000)}"
        ),
        lambda t: (
            f"{t:%d/%m/%Y %H:%M:%S}.{t.microsecond // 1000:03} {draw.digits(6)} {draw.digits(4)} {draw.digits(4)} "
            f"{draw.said()}"
        ),
        lambda t: (
            f"{int(t.timestamp())}.{t.microsecond:06} [{draw.digits(6)}.{draw.digits(6)}] {process}: {draw.said()} "
            f"{draw.digits(10)}"
        ),
        lambda t: (
            f"{t:%y/%m/%d %H:%M:%S} INFO storage.{process.title()}: Found block "
            f"rdd_{rng.randrange(60)}_{rng.randrange(9)} size {draw.digits(8)} task {draw.digits(12)}"
        ),
        lambda t: f"{t:%Y%m%d%H%M%S} {draw.digits(7)} {draw.digits(5)} {process} {draw.hexa(16)} {draw.said()}",
        lambda t: (
            f"{t:%H%M%S}.{t.microsecond:06} {draw.digits(5)} {draw.digits(5)} {process} seq "
            f"{draw.digits(10)}:{draw.digits(10)}, ack {draw.digits(10)}, win {rng.randrange(65535)}"
        ),
        lambda t: (
            f"I{t:%m%d %H:%M:%S}.{t.microsecond:06}   {draw.pid():>7} {process}.cc:{rng.randrange(999)}] {draw.said()}"
        ),
    )
    line = rng.choice(formats)
    return "\n".join(line(draw.tick()) for _ in range(rng.randint(3, 14))) + "\n"


def _figures(draw: _Draw) -> str:
    """A table of decimals, with a heading or without, cut by any usual sign."""
    rng = draw.rng
    sign, width = rng.choice((",", ";", "\t", ", ", " ")), rng.randint(2, 8)
    heading = (
        []
        if rng.random() < 0.4
        else [
            sign.join(
                rng.sample(
                    [
                        "x",
                        "y",
                        "z",
                        "u",
                        "v",
                        "w",
                        "lat",
                        "lon",
                        "depth",
                        "mass",
                        "value",
                        "mean",
                        "std",
                        "weight",
                        "q1",
                        "q3",
                    ],
                    width,
                )
            )
        ]
    )
    rows = [
        sign.join(
            [
                *([rng.choice("ABCDE") + draw.digits(2)] if rng.random() < 0.1 else []),
                *(draw.decimal() for _ in range(width)),
            ]
        )
        for _ in range(rng.randint(3, 16))
    ]
    return "\n".join([*heading, *rows]) + "\n"


def _counts(draw: _Draw) -> str:
    """A table of whole numbers: epochs, populations, ids, volumes."""
    rng = draw.rng
    sign = rng.choice((",", ";", "\t"))
    names = rng.sample(
        [
            "epoch",
            "population",
            "volume",
            "inode",
            "bytes",
            "offset",
            "user_count",
            "views",
            "area_m2",
            "item",
            "checksum",
            "ticks",
        ],
        4,
    )
    rows = [
        sign.join(
            (
                str(int(draw.tick().timestamp())),
                draw.digits(rng.randint(5, 9)),
                draw.digits(rng.randint(6, 12)),
                str(draw.int64()),
            )
        )
        for _ in range(rng.randint(3, 12))
    ]
    return "\n".join([*([sign.join(names)] if rng.random() < 0.6 else []), *rows]) + "\n"


def _airports(draw: _Draw) -> str:
    rows = [
        f"{draw.people.bothify('???').upper()},{draw.people.city()} "
        f"Municipal,{draw.people.city()},{draw.rng.choice(['CA', 'TX', 'NY', 'SD'])},USA,"
        f"{draw.rng.uniform(20, 60):.{draw.rng.randint(5, 8)}f},-{draw.rng.uniform(60, 130):.{draw.rng.randint(5, 8)}f}"
        for _ in range(10)
    ]
    return "\n".join(["iata,name,city,state,country,latitude,longitude"] * draw.rng.randint(0, 1) + rows)


def _dump(draw: _Draw) -> str:
    rng = draw.rng
    rows = [
        f"({draw.digits(4)}, '{draw.word().title()} {draw.word()}', {rng.randrange(300)}, {rng.randrange(9)}, "
        f"'{rng.choice(_NAMES)[0]}. {rng.choice(_SURNAMES)}, {rng.choice(_NAMES)[0]}. {rng.choice(_SURNAMES)}', "
        f"{draw.digits(6)}, {draw.digits(rng.randint(7, 8))}, 0.99)"
        for _ in range(8)
    ]
    head = rng.choice(
        (
            "INSERT INTO track VALUES\n    ",
            'INSERT INTO "Track" ("TrackId", "Name", "AlbumId", "GenreId", "Composer", "Milliseconds", "Bytes", '
            '"UnitPrice") VALUES\n    ',
            "    ",
        )
    )
    return head + ",\n    ".join(rows) + ";\n"


def _dump_of_places(draw: _Draw) -> str:
    rng = draw.rng
    rows = [
        f"({rng.randrange(900)}, {rng.randrange(60)}, '{draw.tick():%Y/%-m/%-d}', "
        f"N'{rng.choice(('Dublin', 'Boston', 'Recife'))}', N'{rng.choice(('CA', 'SP', 'NY'))}', "
        f"N'{rng.choice((f'{draw.digits(5)}-{draw.digits(4)}', f'{draw.digits(5)}-{draw.digits(3)}', draw.digits(5)))}'"
        f", {rng.randrange(20)}.99)"
        for _ in range(8)
    ]
    return (
        "INSERT INTO invoice (id, customer_id, invoice_date, billing_city, billing_state, billing_postal_code, total) "
        "VALUES\n" + ",\n".join(rows) + ";\n"
    )


def _invoice(draw: _Draw) -> str:
    """EN 16931 as EDIFACT in XML, UBL and CII: dates, registers, article numbers, totals; no person."""
    rng = draw.rng
    day, register = f"{draw.tick():%Y%m%d}", draw.digits(rng.choice((8, 9, 10)))
    return rng.choice(
        (
            f"<S_DTM>\n\t<C_C507>\n\t\t<D_2005>{rng.choice(('13', '137', '35'))}</D_2005>\n\t\t<D_2380>{day}</D_2380>\n"
            f"\t\t<D_2379>102</D_2379>\n\t</C_C507>\n</S_DTM>\n<S_RFF>\n\t<C_C506>\n\t\t<D_1153>GN</D_1153>\n\t\t<D_115"
            f"4>{register}</D_1154>\n\t</C_C506>\n</S_RFF>\n<S_MOA>\n\t<C_C516><D_5025>79</D_5025><D_5004>"
            f"{draw.digits(5)}.{draw.digits(2)}</D_5004></C_C516>\n</S_MOA>",
            f"<cac:PartyLegalEntity>\n  <cbc:RegistrationName>{draw.people.company()}</cbc:RegistrationName>\n  "
            f"<cbc:CompanyID>{register}</cbc:CompanyID>\n</cac:PartyLegalEntity>\n<cbc:IssueDate>{draw.tick():%Y-%m-%d}"
            f"</cbc:IssueDate>\n<cbc:ID>{draw.digits(9)}</cbc:ID>\n<cbc:StandardItemIdentification "
            f'schemeID="0160">{draw.digits(13)}</cbc:StandardItemIdentification>\n<cbc:PayableAmount '
            f'currencyID="EUR">{draw.digits(4)}.50</cbc:PayableAmount>',
            f"<ram:IssueDateTime>\n <udt:DateTimeString "
            f'format="102">{day}</udt:DateTimeString>\n</ram:IssueDateTime>\n<ram:SpecifiedLegalOrganization>\n '
            f'<ram:ID schemeID="0002">{register}</ram:ID>\n</ram:SpecifiedLegalOrganization>\n<ram:GlobalID '
            f'schemeID="0088">{draw.digits(13)}</ram:GlobalID>\n<ram:LineTotalAmount>{draw.digits(5)}.00</ram:LineTotal'
            f"Amount>",
            f"UNH+{draw.digits(6)}+INVOIC:D:96A:UN'\nBGM+380+{draw.digits(8)}+9'\nDTM+137:{day}:102'\nRFF+GN:{register}"
            f"'\nMOA+79:{draw.digits(6)}'\nUNT+{rng.randrange(90)}+{draw.digits(6)}'",
        )
    )


def _law(draw: _Draw) -> str:
    rng = draw.rng
    year = rng.randint(1950, 2026)
    parts = (
        f"nach Artikel {rng.randrange(1, 99)} der Verordnung (EU) {year}/{draw.digits(4)} des Europäischen Parlaments "
        f"und des Rates vom 20. Juni {year}",
        f"gemäß §§ {rng.randrange(100, 300)} Abs. 1 Satz 1, {rng.randrange(100, 300)} FGO in Verbindung mit § "
        f"{rng.randrange(9, 90)} Abs. 2 VwGO",
        f"BVerfGE {rng.randrange(1, 160)}, {rng.randrange(10, 400)} Rn. {rng.randrange(1, 90)}; BGHZ "
        f"{rng.randrange(1, 230)}, {rng.randrange(1, 400)} <{rng.randrange(1, 400)}>",
        f"BGH, Urteil vom {rng.randrange(1, 28)}. Mai {year} - VI ZR {rng.randrange(1, 400)}/{year % 100:02}, NJW "
        f"{year}, {draw.digits(4)} Rn. {rng.randrange(1, 60)}",
        f"(BGBl. I S. {draw.digits(4)}, {draw.digits(4)}), das zuletzt durch Artikel {rng.randrange(1, 30)} des "
        f"Gesetzes vom {rng.randrange(1, 28)}. März {year} (BGBl. {year} I Nr. {rng.randrange(400)}) geändert worden "
        f"ist",
        f"EuGH, Rs. C-{rng.randrange(1, 800)}/{year % 100:02}, Slg. {year}, I-{draw.digits(4)}, "
        f"ECLI:EU:C:{year}:{rng.randrange(1000)}, Rn. {rng.randrange(90)}",
        f"Council Regulation (EC) No {draw.digits(4)}/{year} and Directive {year}/{rng.randrange(10, 99)}/EU, OJ L "
        f"{rng.randrange(400)}, {rng.randrange(1, 28)}.{rng.randrange(1, 13)}.{year}, p. {rng.randrange(900)}",
        f"EU trade mark No {draw.digits(9)}, application No 0{draw.digits(8)}, case "
        f"T-{rng.randrange(800)}/{year % 100:02}",
        f"Unionsmarke Nr. 0{draw.digits(8)}, Aktenzeichen 30 {year} {draw.digits(3)} {draw.digits(3)}, Anmeldung vom "
        f"{rng.randrange(1, 28)}.{rng.randrange(1, 13)}.{year}",
        f"Cass. civ., sez. un., {rng.randrange(1, 28)} gennaio {year}, n. {draw.digits(5)}; Cons. Stato, sez. IV, n. "
        f"{draw.digits(4)}/{year}",
        f"Cass. 1re civ., 12 mars {year}, n° {rng.randrange(10, 99)}-{rng.randrange(10, 30)}.{draw.digits(3)}, Bull. "
        f"n° {rng.randrange(400)}",
    )
    return ". ".join(rng.sample(parts, 4)) + "."


def _history(draw: _Draw) -> str:
    """Lives and reigns by their years."""
    rng = draw.rng
    first = rng.randint(900, 1890)
    name, born = f"{rng.choice(_NAMES)} {rng.choice(_SURNAMES)}", first
    dash = rng.choice(("-", " - ", "–", " – "))
    return rng.choice(
        (
            f"{name} ({born}{dash}{born + rng.randint(20, 90)}) was a composer of the {born // 100 + 1}th century.",
            f"{name} ({born}{dash}{born + 61}), peintre, et {rng.choice(_NAMES)} {rng.choice(_SURNAMES)} "
            f"({born + 7}{dash}{born + 70}), graveur.",
            f"Der Krieg ({first}{dash}{first + 4}) endete mit dem Frieden; {name} ({first - 30}{dash}{first + 30}) "
            f"regierte.",
            f"The dynasty {first}{dash}{first + 120} and its successors ({first + 120}{dash}{first + 200}) minted "
            f"silver.",
            f"{name} {rng.choice('*†')} {first}{dash}{first + 50}; volume {first} / {first + 1}.",
        )
    )


def _changelog(draw: _Draw) -> str:
    rng = draw.rng
    shape = rng.randrange(4)
    lines = []
    for _ in range(4):
        day, version = draw.tick(), f"{rng.randrange(9)}.{rng.randrange(30)}.{rng.randrange(20)}"
        head = (
            f"{version} / {day:%Y-%m-%d}\n==================",
            f"## [{version}] - {day:%Y-%m-%d}",
            f"v{version} ({day:%d.%m.%Y})",
            f"{version}.{day:%Y%m%d}",
        )[shape]
        lines.append(
            f"{head}\n\n  * {draw.said()} (#{draw.digits(5)})\n  * deps: {draw.word()}@~{version}; ratio "
            f"0.{rng.randrange(9)}0 / 0.{rng.randrange(9)}0 / 0.{rng.randrange(9)}0\n"
        )
    return "\n".join(lines)


_KINDS = [
    "PHONE_NUMBER",
    "DRIVERS_LICENSE",
    "PASSPORT",
    "LICENSE_PLATE",
    "SSN",
    "US_SSN",
    "IBAN",
    "IBAN_CODE",
    "CREDIT_CARD",
    "EMAIL_ADDRESS",
    "NATIONAL_ID",
    "TAX_ID",
    "IP_ADDRESS",
    "DATE_OF_BIRTH",
    "BIC_CODE",
    "MAC_ADDRESS",
    "IMEI",
    "VAT_NUMBER",
    "MEDICAL_RECORD",
    "phone",
    "pesel",
    "bsn",
    "nif",
    "steuernummer",
    "telefon",
    "plate",
    "cvv",
]


def _score(rng: random.Random) -> str:
    drawn = f"{rng.random():.6f}", f"{rng.random():.4f}", f"{rng.random():.3f}", str(rng.random())
    return rng.choice((*drawn, "0.0", "1.0"))


def _metrics(draw: _Draw) -> str:
    """Scores by label: a label is no name of the figure behind it."""
    rng = draw.rng
    names = rng.sample(_KINDS, 8)
    fields = [f'"{name}": {_score(rng)}' for name in names]
    return rng.choice(
        (
            '{"per_label_f1": {\n    ' + ",\n    ".join(fields) + "\n  }\n}",
            "{" + ", ".join(fields) + "}",
            "label,precision,recall,f1,support\n"
            + "\n".join(
                f"{name},{rng.random():.4f},{rng.random():.4f},{rng.random():.6f},{rng.randrange(900)}"
                for name in names
            ),
            "| label | precision | recall |\n|---|---|---|\n"
            + "\n".join(f"| {name} | {rng.random():.6f} | {rng.random():.6f} |" for name in names),
            "\n".join(f"{name.lower()}_f1={rng.random():.6f}" for name in names),
        )
    )


def _code(draw: _Draw) -> str:
    rng = draw.rng
    step = rng.choice(("::-1", "::2", "::-2", "1::2", "::step", "..., ::3", ":, ::2", "::10", "::-1, ::-1"))
    return rng.choice(
        (
            f"rev = a[{step}]\nev = b[::2]\nassert_equal(x[::{rng.randint(2, 9)}].strides, (8,))\nout[1::2, "
            f"::{rng.randint(2, 9)}] = c[::-1]",
            f"a{rng.randint(1, 9)}::b{rng.randint(1, 9)}::c\nstd::array<int, 3> v; "
            f"Foo::bar::{rng.randint(1, 9)}(x);\nserver.bind('{draw.local_address()}', 8000)",
            f"SEED = {draw.digits(9)}\nMASK = 0x{draw.hexa(16)}\nTABLE = "
            f"[{', '.join(draw.digits(10) for _ in range(12))}]",
            f"#define MAGIC {draw.digits(10)}u /* {draw.hexa(8)} */\nstatic const uint64_t k[] = {{ "
            f"{', '.join(draw.digits(19) + 'ull' for _ in range(4))} }};",
            f"it('opens {draw.local_address()}', () => expect(port).toBe({rng.randrange(1024, 65535)}));\nconst DAY = "
            f"86400000, EPOCH = {int(draw.tick().timestamp() * 1000)};",
            f"listen {draw.local_address()}:{rng.randrange(1024, 65535)};\nnetmask "
            f"255.255.{rng.choice(('255.0', '0.0', '255.128', '240.0'))}\nnameserver "
            f"{rng.choice(('8.8.8.8', '1.1.1.1', '9.9.9.9', '8.8.4.4', '1.0.0.1'))}\nproxy_pass http://127.0.0.1:8080;",
            f"case {draw.digits(8)}: build {draw.digits(8)}; job = {draw.digits(12)}; const size_t n = "
            f"{draw.digits(9)};",
            f"np.array([{', '.join(draw.decimal() for _ in range(6))}])\nassert_allclose(y, {draw.decimal()}, "
            f"rtol=1e-7)",
        )
    )


def _lock(draw: _Draw) -> str:
    rng = draw.rng
    return "\n".join(rng.choice((
        f'"{draw.word()}@^{rng.randrange(9)}.{rng.randrange(30)}.{rng.randrange(9)}":\n  version '
        f'"{rng.randrange(9)}.{rng.randrange(30)}.{rng.randrange(9)}"\n  integrity '
        f'sha512-{draw.hexa(40)}{draw.hexa(40)}==',
        f'[[package]]\nname = "{draw.word()}"\nversion = '
        f'"{rng.randrange(9)}.{rng.randrange(30)}.{draw.digits(8)}"\nchecksum = "{draw.hexa(64)}"',
        f"{draw.hexa(40)}  {draw.word()}-{rng.randrange(9)}.{rng.randrange(30)}.tar.gz\n{draw.hexa(7)} {draw.said()}",
        f"{draw.word()}=={rng.randrange(2000, 2027)}.{rng.randrange(1, 13)}.{rng.randrange(1, 30)} "
        f"--hash=sha256:{draw.hexa(64)}",
    )) for _ in range(6))  # fmt: skip


def _science(draw: _Draw) -> str:
    rng = draw.rng
    return rng.choice((
        f"CC(=O)Oc1ccccc1C(=O)O CHEMBL{draw.digits(6)} {draw.decimal()} {draw.decimal()} CAS "
        f"{draw.digits(5)}-{draw.digits(2)}-{rng.randrange(10)}",
        f"  -0.{draw.digits(4)}    1.{draw.digits(4)}    0.0000 C   0  0  0\n   2.{draw.digits(4)}   "
        f"-1.{draw.digits(4)}    0.0000 N   0  0  0\n  1  2  1  0",
        f"\\cite{{{draw.word()}{rng.randint(1950, 2026)}}} gives $\\alpha = {draw.decimal()}$, "
        f"arXiv:{rng.randint(10, 26)}{rng.randint(1, 12):02}.{draw.digits(5)}, "
        f"doi:10.{draw.digits(4)}/s{draw.digits(5)}-{draw.digits(3)}-{draw.digits(5)}-{rng.randrange(9)}, pp. "
        f"{draw.digits(4)}-{draw.digits(4)}",
        f"RA {rng.randrange(24)} {rng.randrange(60):02} {rng.uniform(0, 60):06.3f} Dec -{rng.randrange(90)} "
        f"{rng.randrange(60):02} {rng.uniform(0, 60):05.2f} MJD {draw.digits(5)}.{draw.digits(5)} flux "
        f"{draw.decimal()} {draw.decimal()}",
        f"ATOM   {draw.digits(4)}  CA  GLY A {rng.randrange(400)}      {rng.uniform(10, 99):.3f}  "
        f"{rng.uniform(10, 99):.3f}  {rng.uniform(10, 99):.3f}  1.00 {rng.uniform(10, 99):.2f}           C",
    ))  # fmt: skip


def _notes(draw: _Draw) -> str:
    rng = draw.rng
    return rng.choice((
        f"Build {draw.digits(8)} is green; nightly {draw.tick():%Y%m%d}-{draw.tick():%H%M%S} took {draw.digits(7)} us, "
        f"commit {draw.hexa(8)}.",
        f"Open http://{rng.choice(('127.0.0.1', '0.0.0.0', '[::1]'))}:{rng.randrange(1024, 65535)}/ in a browser; on "
        f"Windows use 127.0.0.1.",
        f"Set the resolver to {rng.choice(('8.8.8.8 or 8.8.4.4', '1.1.1.1', '9.9.9.9', '2606:4700:4700::1111'))} and "
        f"the mask to 255.255.255.{rng.choice((0, 128, 192, 240, 252))}.",
        f"Use 192.0.2.{rng.randrange(256)}, 198.51.100.{rng.randrange(256)} or 2001:db8::{rng.randrange(1, 99)} in the "
        f"manual's examples.",
        f"The record has {draw.digits(19)} as its id, {int(draw.tick().timestamp())} as its time and "
        f"{int(draw.tick().timestamp() * 1e9)} in ns.",
        f"Snowflake {draw.digits(18)}, order of {draw.digits(3)},{draw.digits(3)},{draw.digits(3)} rows, 2^63-1 = "
        f"9223372036854775807.",
        f"{{\"run\": {draw.digits(10)}, \"created_at\": {int(draw.tick().timestamp())}, \"loss\": {draw.decimal()}, "
        f"\"steps\": [{draw.digits(7)}, {draw.digits(8)}]}}",
        f"Tender {rng.randint(2015, 2026)}/S {draw.digits(3)}-{draw.digits(6)}, CPV "
        f"{draw.digits(8)}-{rng.randrange(10)}, HS code {draw.digits(4)} {draw.digits(2)} {draw.digits(2)}, IMO "
        f"{draw.digits(7)}.",
    ))  # fmt: skip


CLEAN: dict[str, Callable[[_Draw], str]] = {
    "log": _log, "figures": _figures, "counts": _counts, "airports": _airports, "sql-dump": _dump,
    "sql-places": _dump_of_places,
    "invoice": _invoice, "law": _law, "history": _history, "changelog": _changelog, "metrics": _metrics, "code": _code,
    "lock": _lock,
    "science": _science, "notes": _notes,
}  # fmt: skip


def _with_values(draw: _Draw) -> Iterator[tuple[str, str, Spans]]:
    """Files of the same shapes in which a few personal values stand among the figures."""
    rng = draw.rng
    email, ip = (
        draw.people.email(),
        f"{rng.randint(80, 95)}.{rng.randint(100, 255)}.{rng.randrange(256)}.{rng.randrange(1, 255)}",
    )
    pesel = number("pl_pesel", rng)
    phone = f"+49 30 {draw.digits(6)}"
    card = "4111 1111 1111 1111"
    name = f"{rng.choice(_NAMES)} {rng.choice(_SURNAMES)}"
    for kind, text, values in (
        ("log+", _log(draw) + f"{draw.tick():%y%m%d %H%M%S} {draw.pid()} INFO login from {ip} as {email}\n", ((ip,
        "IP"), (email, "EMAIL"))),
        ("log+", f"{draw.tick():%H:%M:%S} charge card={card} amount={draw.decimal()}\n" * 2, ((card, "CARD"),)),
        ("csv+", f"name;mail;phone;id\n{name};{email};{phone};{pesel}\n", ((email, "EMAIL"), (phone, "PHONE"), (pesel,
        "PL_PESEL"))),
        ("csv+", f"{name};{email};{phone};{pesel}\n", ((email, "EMAIL"), (phone, "PHONE"), (pesel, "PL_PESEL"))),
        ("figures+", f"{draw.decimal()},{draw.decimal()},{draw.decimal()}\nTel. "
                     f"{phone}\n{draw.decimal()},{draw.decimal()}\n", ((phone, "PHONE"),)),
        ("json+", f'{{"score": {rng.random():.6f}, "phone_number": "{phone}", "ip_address": "{ip}"}}', ((phone,
        "PHONE"), (ip, "IP"))),
        ("code+", f"rev = a[::-1]  # ask {email}\nserver = '{ip}'\n", ((email, "EMAIL"), (ip, "IP"))),
        ("law+", f"{_law(draw)} Rückfragen: {phone}, {email}.", ((phone, "PHONE"), (email, "EMAIL"))),
    ):  # fmt: skip
        spans = []
        for value, label in values:
            at = text.find(value)
            while at >= 0:
                spans.append((at, at + len(value), label))
                at = text.find(value, at + len(value))
        yield kind, text, tuple(sorted(spans))


def cases(seed: int, rounds: int) -> Iterator[Case]:
    """Four clean files of each class a round, and each file with values once."""
    rng = random.Random(f"real-shapes-{seed}")
    for turn in range(rounds):
        for kind, make in CLEAN.items():
            for index in range(4):
                yield Case(f"{kind}-{turn}-{index}", "mul", kind, make(_Draw(rng)), ())
        for index, (kind, text, spans) in enumerate(_with_values(_Draw(rng))):
            yield Case(f"{kind}-{turn}-{index}", "mul", kind, text, spans)


def main() -> None:
    asked = options(__doc__, seed=2029, rounds=4).parse_args()
    write(asked.file, cases(asked.seed, asked.rounds))


if __name__ == "__main__":
    main()
