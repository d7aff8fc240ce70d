# ruff: noqa: E501  # lines of files read better in one line
"""Texts of machines and tables without personal data: ``python -m tests.data.redaction.machine_shapes FILE.jsonl``.

Each class is a template. ``<d5>``: five digits, the first not 0; ``<n900>``: a number below 900; ``<z60>``: the same with
a leading 0 up to its width; ``<h8>``: eight hexadecimal digits; ``<f3>``: a decimal below 100 with three places; ``<r6>``:
one below 1. A line that begins with ``*8 `` stands eight times, with other numbers each time. Every value is drawn.
"""

import random
import re
from collections.abc import Iterator

from tests.data.redaction.filling import Case, options, write

_FIELD = re.compile(r"<([dnzhfr])([0-9]+)>")
_REPEATED = re.compile(r"\*([0-9]+) (.*)", re.DOTALL)

CLASSES = {
    "access log": '*8 - - - [1<n10>/Nov/2026:1<n10>:<z60>:<z60> +0100] "GET /static/<h8>.js?v=<d10> HTTP/1.1" 304 <d6> "-" "Mozilla/5.0 (X11; Linux x86_64; rv:<n99>.0) Gecko/20100101 Firefox/<n99>.0" rt=<r3> cid=<d9>',
    "assembly": "*6 \tmovabsq\t$<d18>, %rax\n\timulq\t$<d9>, %rdx, %rcx\n\t.long\t<d10>\n\t.quad\t-<d17>",
    "astronomy": "RA 0<n9> <z60> <z60>.<d2> Dec +<n90> <z60> <z60>.<n9>; JD 24<d5>.<d5>; HD <d6>; Gaia DR3 <d19>; TIC <d9>\nUTM 32U <d6> <d7>; EPSG:<d5>\n1 <d5>U <d5>A   <d5>.<d8>  .0000<d4>  00000-0  <d5>-4 0  999<n9>",
    "blame": "*20 <h8> (dev 20<z24>-0<n9>-1<n9> <z24>:<z60>:<z60> +0100 <n900>) x = <d9>",
    "chemistry": "InChI=1S/C<n30>H<n40>N3O2/c1-10(2)13-7-5-12(6-8-13)9-11(3)14(15)16/h5-8,10-11H\nCID <d8> SID <d9> CHEMBL<d7> EC 2<d2>-<d3>-<n9>; MFCD<d8>\nHRMS (ESI) m/z calcd for C17H21N2O3 [M+H]+ <d3>.<d4>, found <d3>.<d4>\n*4 ATOM   <d4>  CA  ALA A <d3>      <f3>  <f3>  <f3>  1.00 <f2>           C",
    "chess": '[Date "19<d2>.<z12>.<z28>"]\n[WhiteElo "2<d3>"]\n[WhiteFideId "<d7>"]\n*9 <n60>. Nf3 {[%clk 1:<z60>:<z60>]} Bb<n8> {[%eval <r2>]}\ninfo depth <n40> nodes <d9> nps <d7> tbhits <d5> time <d6>',
    "columns": "*12 <n9>  0 <d6> <d6> <d6> <d7>    0    0   <d3>   <d3> <d4> <n999> <n99>  <n9> <n99>  0  0",
    "customs": "Steuersatz 19 %, Konto <d4> an <d4> <d5>,<d2>\nTARIC 8471 30 00 00, KN-Code <d4> <d2> <d2>; HS <d4>.<d2>.<d4>; Zolltarif <d4> <d2> <d2>",
    "deployment": 'metadata:\n  uid: <h8>-<h4>-<h4>-<h4>-<h12>\n  resourceVersion: "<d9>"\n  annotations: {checksum/config: <h64>}\nenv:\n- {name: SHARD_ID, value: "<d9>"}\n- {name: EPOCH_OFFSET, value: "1<d9>"}\n- {name: CHAT_ID, value: "-100<d10>"}',
    "drawing": '*4 d="M<f3>,<f3>c<r3>-<r3>,<r3>-<r3>,<r3>-<r3>l<f3>-<f3>z"\n<path d="M <n999> <n999> L <n999> <n999>"/> viewBox="0 0 <n2000> <n2000>"\n"snowflake": <d18>, "etag": "W/\\"<h6>-<d11>\\""',
    "dump of bytes": "*6 <h8>  <h2> <h2> <h2> <h2> <h2> <h2> <h2> <h2>  <h2> <h2> <h2> <h2> <h2> <h2> <h2> <h2>  |................|\n*4 <d7> <d6> <d6> <d6> <d6> <d6> <d6> <d6> <d6>\n*4 <h8>-<h8> r-xp <h8> 08:0<n9> <d8> /usr/lib/libc.so.6",
    "election": "Wahlkreis | Wahlberechtigte | Anteil\n*9 0<d2> | <d3> <d3> | <f1>\n*5 <d2> <d3> <d3>   <d2> <d3> <d3>\nPopulation: <d2> <d3> <d3>; <d1> <d3> <d3> <d3> kWh",
    "garbage collector": "[GC (Allocation Failure) <d6>K-><d6>K(<d7>K), <r7> secs]\n[kafka-producer-network-thread | producer-1] node <d10> disconnected, correlation id <d7>\n#  SIGSEGV (0xb) at pc=0x<h16>, pid=<d5>, tid=<d5>\nr10=0x<h16> r11=0x<h16>",
    "genome": "#CHROM\tPOS\tID\tREF\tALT\tQUAL\n*8 chr<n22>\t<d8>\trs<d8>\tA\tG\t<f2>\tPASS\tDP=<n300>;AF=<r4>\n*4 chr<n22>\t<d8>\t<d8>\tENSG<d11>\t<n999>\t+\nPMID: <d8> NM_<d6>.1 GSE<d6> NCT<d8>",
    "history": "*5 commit <h40>\nDate:   Mon Nov 1<n10> 1<n10>:<z60>:<z60> 2026 +0100\n\n    Fix #<d5>: close the reader\n\nindex <h7>..<h7> 100644\n@@ -<n999>,<n99> +<n999>,<n99> @@ static int f(void)\n-    return <d9>;\n+    return <d9>;\nremote: Counting objects: 100% (<d5>/<d6>), done.\n <n99> files changed, <d5> insertions(+), <d5> deletions(-)",
    "infrastructure": 'ami = "ami-0<h16>"\narn = "arn:aws:iam::<d12>:role/deploy"\naccount_id = "<d12>"\ntags = { CostCenter = "<d6>", Ticket = "OPS-<d5>" }\ncidr_blocks = ["10.<n255>.0.0/16", "172.16.<n255>.0/24", "0.0.0.0/0"]',
    "kernel": "*8 Nov 1<n10> <z24>:<z60>:<z60> host<n9> kernel: [<d7>.<d6>] Out of memory: Killed process <d6> (java) total-vm:<d8>kB\n*4 Nov 1<n10> <z24>:<z60>:<z60> host<n9> kernel: [<d7>.<d6>] audit: type=1400 audit(17<d8>.<d3>:<d4>)\nE1130 12:00:00.<d6>       1 reflector.go:<d3>] too old resource version: <d9> (<d9>)",
    "latex": "\\begin{tabular}{lrrr}\n*5 A & <f3> & <d6> & $<f2> \\pm <r2>$ \\\\\nPhys.\\ Rev.\\ D <n100>, <d6> (19<d2>); \\doi{10.1103/PhysRevD.<n100>.<d6>}\narXiv:1<n10>0<n9>.<d5>; MR<d7>; Zbl 0<d3>.<d5>\n$2^{61}-1 = 2305843009213693951$",
    "list of files": "*9 -rw-r--r-- 1 root root <d10> Nov 1<n10> 1<n10>:<z60> db-<d8>.bin\n*4 <d7> <d4> -rw------- 1 1000 1000 <d8> 2026-11-1<n10> 12:00:00.<d9> +0100 f<d3>\n*3 /dev/sda1 <d9> <d9> <d9> <n99>% /mnt/a",
    "log of keys": '*6 time=2026-11-1<n10>T<z24>:<z60>:<z60>.<d9>Z level=info msg="compaction done" trace_id=<h32> span_id=<h16> from=<d10> to=<d10> bytes=<d9> dur=<f6>ms shard=<d4> seq=<d8> gen=<d11>',
    "metrics": '*6 http_requests_total{code="500",handler="/api/v<n4>"} <d10> 17<d11>\nprocess_start_time_seconds 1.7<d8>e+09\nnode_cpu_seconds_total{cpu="<n64>"} <d8>.<d2>\n*3 weather,location=us temperature=<n99> 17<d17>',
    "mill": "*9 G1 X<f3> Y<f3> E<f5> F<d4>\n*6 v -<f6> <f6> <r6>\nf <d4>/<d4>/<d4> <d4>/<d4>/<d4> <d4>/<d4>/<d4>",
    "orders": "Bestellnr. <d3>-<d7>-<d7>; EAN <d13>; Lieferschein <d10>; Seriennummer <d12>; Vertrag <d10>; Zählernummer <d8>; Part no. <d3>-<d4>-<d2>\nTracking <d12>; Katalog <d4> <d3> <d3>; Katalog 0<d3> <d3> <d3>",
    "panic": "const SEED: u64 = <d18>;\nstatic PRIMES: [u32; 4] = [<d9>, <d10>, <d9>, <d10>];\nassert_eq!(fnv1a(b\"hello\"), <d19>);\nthread 'main' panicked at src/lib.rs:<n900>:<n90>\nlet v = vec![<f6>_f64, <f6>_f64];\nrandom.getstate()[1][:4]\n(<d10>, <d9>, <d10>, <d10>)",
    "plan of a query": " Hash Join  (cost=<f2>..<d5>.<d2> rows=<d7> width=<n300>) (actual time=<f3>..<f3> rows=<d7> loops=1)\n   Buffers: shared hit=<d7> read=<d6>\n         Rows Removed by Filter: <d8>\noid <d6>  relfilenode <d6> xmin <d9> lsn <h2>/<h8>",
    "positions": "*6 $GPGGA,<z24><z60><z60>.<d2>,<d4>.<d4>,N,0<d4>.<d4>,E,1,08,<r1>,<n900>.<n9>,M,46.9,M,,*<h2>\n*4 MMSI <d9> IMO <d7> course <f1>",
    "scores": "Pl. Verein        Sp.  S  U  N   Tore   Diff  Pkt\n*5 <n9>.  SV Linden     <n34>  <n20> <n9> <n9>  <n90>:<n90>  <n50>   <n90>\n*3 100 m: 1. <f2> (-0.<n9>) 2. <f2> (+1.<n9>)\n*3 6-<n5> 3-6 7-6(<n7>) 6-4\nZuschauer: <d2>.<d3>; 4x400 m 2:59,<d2>",
    "sensors": "ts;dev;lat;lon;hPa;rssi;seq\n*9 17<d8>;<d7>;<f6>;<f6>;9<d2>.<d2>;-<n120>;<d7>\n\n*9 <d10> <d9> <r3> <h4>",
    "shares": "ISIN DE000<d7>, WKN <d6>, SEDOL <d7>, CUSIP <d9>; EUR/USD 1,0<d3>; DAX 1<n9>.<d3>,<d2>\n*8 1<n9>.11.2026;<f2>;<f2>;<f2>;<d8>",
    "tax table": "Einkommen von ... bis ... EUR | Grundtarif | Splitting\n*9 <d2>.<d3> - <d2>.<d3> | <n9>.<d3> | <n9>.<d3> | <d3>.<d2>\n*6 <d5> <d4> <d4> <d2>,<d2>",
    "timetable": "*6 ICE <d3>  ab <z24>:<z60>  an <z24>:<z60>  Gl. <n24>  Wg <n30>\n*4 LH<d4> FRA-MUC 0<n9><z60>-1<n9><z60> A320 14F\nMETAR EDDF <d6>Z <d5>KT 9999 NOSIG\nNOTAM A<d4>/26 B) <d10> C) <d10>",
}


def _drawn(kind: str, size: int, rng: random.Random) -> str:
    if kind == "d":
        return str(rng.randrange(10 ** (size - 1), 10**size))
    if kind == "h":
        return f"{rng.getrandbits(4 * size):0{size}x}"
    if kind == "f":
        return f"{rng.uniform(0, 100):.{size}f}"
    if kind == "r":
        return f"{rng.random():.{size}f}"
    return f"{rng.randrange(size):0{len(str(size)) if kind == 'z' else 1}}"


def text_of(template: str, rng: random.Random) -> str:
    """Return a text of a class, drawn from `rng`."""
    lines: list[str] = []
    for line in template.split("\n"):
        repeated = _REPEATED.fullmatch(line)
        lines += [repeated[2]] * int(repeated[1]) if repeated else [line]
    return _FIELD.sub(lambda field: _drawn(field[1], int(field[2]), rng), "\n".join(lines)) + "\n"


def cases(seed: int, rounds: int) -> Iterator[Case]:
    """Yield one text of each class a round, none of which holds personal data."""
    rng = random.Random(f"machine-shapes-{seed}")
    for turn in range(rounds):
        for kind, template in CLASSES.items():
            yield Case(f"{kind}-{turn}", "mul", kind, text_of(template, rng), ())


def main() -> None:
    asked = options(__doc__, seed=2031, rounds=8).parse_args()
    write(asked.file, cases(asked.seed, asked.rounds))


if __name__ == "__main__":
    main()
