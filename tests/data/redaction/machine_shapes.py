"""Texts of machines and tables without personal data: ``python -m tests.data.redaction.machine_shapes FILE.jsonl``.

Each class is a template. ``<d5>``: five digits, the first not 0; ``<n900>``: a number below 900; ``<z60>``: the same
with a leading 0 up to its width; ``<h8>``: eight hexadecimal digits; ``<f3>``: a decimal below 100 with three places;
``<r6>``: one below 1. A line that begins with ``*8 `` stands eight times, with other numbers each time. Every value
is drawn.
"""

import random
import re
from collections.abc import Iterator

from tests.data.redaction.filling import Case, options, write

_FIELD = re.compile(r"<([dnzhfr])([0-9]+)>")
_REPEATED = re.compile(r"\*([0-9]+) (.*)", re.DOTALL)

CLASSES = {
    "access log": '*8 - - - [1<n10>/Nov/2026:1<n10>:<z60>:<z60> +0100] "GET /static/<h8>.js?v=<d10> HTTP/1.1" 304 <d6> '
    '"-" "Mozilla/5.0 (X11; Linux x86_64; rv:<n99>.0) Gecko/20100101 Firefox/<n99>.0" rt=<r3> cid=<d9>',
    "assembly": "*6 \tmovabsq\t$<d18>, %rax\n\timulq\t$<d9>, %rdx, %rcx\n\t.long\t<d10>\n\t.quad\t-<d17>",
    "astronomy": "RA 0<n9> <z60> <z60>.<d2> Dec +<n90> <z60> <z60>.<n9>; JD 24<d5>.<d5>; HD <d6>; Gaia DR3 <d19>; TIC "
    "<d9>\nUTM 32U <d6> <d7>; EPSG:<d5>\n1 <d5>U <d5>A   <d5>.<d8>  .0000<d4>  00000-0  <d5>-4 0  999<n9>",
    "blame": "*20 <h8> (dev 20<z24>-0<n9>-1<n9> <z24>:<z60>:<z60> +0100 <n900>) x = <d9>",
    "chemistry": "InChI=1S/C<n30>H<n40>N3O2/c1-10(2)13-7-5-12(6-8-13)9-11(3)14(15)16/h5-8,10-11H\nCID <d8> SID <d9> "
    "CHEMBL<d7> EC 2<d2>-<d3>-<n9>; MFCD<d8>\nHRMS (ESI) m/z calcd for C17H21N2O3 [M+H]+ <d3>.<d4>, found "
    "<d3>.<d4>\n*4 ATOM   <d4>  CA  ALA A <d3>      <f3>  <f3>  <f3>  1.00 <f2>           C",
    "chess": '[Date "19<d2>.<z12>.<z28>"]\n[WhiteElo "2<d3>"]\n[WhiteFideId "<d7>"]\n*9 <n60>. Nf3 {[%clk '
    "1:<z60>:<z60>]} Bb<n8> {[%eval <r2>]}\ninfo depth <n40> nodes <d9> nps <d7> tbhits <d5> time <d6>",
    "columns": "*12 <n9>  0 <d6> <d6> <d6> <d7>    0    0   <d3>   <d3> <d4> <n999> <n99>  <n9> <n99>  0  0",
    "customs": "Steuersatz 19 %, Konto <d4> an <d4> <d5>,<d2>\nTARIC 8471 30 00 00, KN-Code <d4> <d2> <d2>; HS "
    "<d4>.<d2>.<d4>; Zolltarif <d4> <d2> <d2>",
    "deployment": 'metadata:\n  uid: <h8>-<h4>-<h4>-<h4>-<h12>\n  resourceVersion: "<d9>"\n  annotations: '
    '{checksum/config: <h64>}\nenv:\n- {name: SHARD_ID, value: "<d9>"}\n- {name: EPOCH_OFFSET, value: '
    '"1<d9>"}\n- {name: CHAT_ID, value: "-100<d10>"}',
    "drawing": '*4 d="M<f3>,<f3>c<r3>-<r3>,<r3>-<r3>,<r3>-<r3>l<f3>-<f3>z"\n<path d="M <n999> <n999> L <n999> '
    '<n999>"/> viewBox="0 0 <n2000> <n2000>"\n"snowflake": <d18>, "etag": "W/\\"<h6>-<d11>\\""',
    "dump of bytes": "*6 <h8>  <h2> <h2> <h2> <h2> <h2> <h2> <h2> <h2>  <h2> <h2> <h2> <h2> <h2> <h2> <h2> <h2>  "
    "|................|\n*4 <d7> <d6> <d6> <d6> <d6> <d6> <d6> <d6> <d6>\n*4 <h8>-<h8> r-xp <h8> "
    "08:0<n9> <d8> /usr/lib/libc.so.6",
    "election": "Wahlkreis | Wahlberechtigte | Anteil\n*9 0<d2> | <d3> <d3> | <f1>\n*5 <d2> <d3> <d3>   <d2> <d3> "
    "<d3>\nPopulation: <d2> <d3> <d3>; <d1> <d3> <d3> <d3> kWh",
    "garbage collector": "[GC (Allocation Failure) <d6>K-><d6>K(<d7>K), <r7> secs]\n[kafka-producer-network-thread | "
    "producer-1] node <d10> disconnected, correlation id <d7>\n#  SIGSEGV (0xb) at pc=0x<h16>, "
    "pid=<d5>, tid=<d5>\nr10=0x<h16> r11=0x<h16>",
    "genome": "#CHROM\tPOS\tID\tREF\tALT\tQUAL\n*8 chr<n22>\t<d8>\trs<d8>\tA\tG\t<f2>\tPASS\tDP=<n300>;AF=<r4>\n*4 "
    "chr<n22>\t<d8>\t<d8>\tENSG<d11>\t<n999>\t+\nPMID: <d8> NM_<d6>.1 GSE<d6> NCT<d8>\n*2 "
    "chr<n22>:<d8>-<d8>\nTender 2026/S <d3>-<d6>; CPV 72000000",
    "history": "*5 commit <h40>\nDate:   Mon Nov 1<n10> 1<n10>:<z60>:<z60> 2026 +0100\n\n    Fix #<d5>: close the "
    "reader\n\nindex <h7>..<h7> 100644\n@@ -<n999>,<n99> +<n999>,<n99> @@ static int f(void)\n-    return "
    "<d9>;\n+    return <d9>;\nremote: Counting objects: 100% (<d5>/<d6>), done.\n <n99> files changed, "
    "<d5> insertions(+), <d5> deletions(-)",
    "infrastructure": 'ami = "ami-0<h16>"\narn = "arn:aws:iam::<d12>:role/deploy"\naccount_id = "<d12>"\ntags = { '
    'CostCenter = "<d6>", Ticket = "OPS-<d5>" }\ncidr_blocks = ["10.<n255>.0.0/16", '
    '"172.16.<n255>.0/24", "0.0.0.0/0"]',
    "kernel": "*8 Nov 1<n10> <z24>:<z60>:<z60> host<n9> kernel: [<d7>.<d6>] Out of memory: Killed process <d6> (java) "
    "total-vm:<d8>kB\n*4 Nov 1<n10> <z24>:<z60>:<z60> host<n9> kernel: [<d7>.<d6>] audit: type=1400 "
    "audit(17<d8>.<d3>:<d4>)\nE1130 12:00:00.<d6>       1 reflector.go:<d3>] too old resource version: <d9> "
    "(<d9>)",
    "latex": "\\begin{tabular}{lrrr}\n*5 A & <f3> & <d6> & $<f2> \\pm <r2>$ \\\\\nPhys.\\ Rev.\\ D <n100>, <d6> "
    "(19<d2>); \\doi{10.1103/PhysRevD.<n100>.<d6>}\narXiv:1<n10>0<n9>.<d5>; MR<d7>; Zbl 0<d3>.<d5>\n$2^{61}-1 "
    "= 2305843009213693951$",
    "list of files": "*9 -rw-r--r-- 1 root root <d10> Nov 1<n10> 1<n10>:<z60> db-<d8>.bin\n*4 <d7> <d4> -rw------- 1 "
    "1000 1000 <d8> 2026-11-1<n10> 12:00:00.<d9> +0100 f<d3>\n*3 /dev/sda1 <d9> <d9> <d9> <n99>% "
    "/mnt/a",
    "log of keys": '*6 time=2026-11-1<n10>T<z24>:<z60>:<z60>.<d9>Z level=info msg="compaction done" trace_id=<h32> '
    "span_id=<h16> from=<d10> to=<d10> bytes=<d9> dur=<f6>ms shard=<d4> seq=<d8> gen=<d11>",
    "metrics": '*6 http_requests_total{code="500",handler="/api/v<n4>"} <d10> 17<d11>\nprocess_start_time_seconds '
    '1.7<d8>e+09\nnode_cpu_seconds_total{cpu="<n64>"} <d8>.<d2>\n*3 weather,location=us temperature=<n99> '
    "17<d17>",
    "mill": "*9 G1 X<f3> Y<f3> E<f5> F<d4>\n*6 v -<f6> <f6> <r6>\nf <d4>/<d4>/<d4> <d4>/<d4>/<d4> <d4>/<d4>/<d4>",
    "orders": "Bestellnr. <d3>-<d7>-<d7>; EAN <d13>; Lieferschein <d10>; Seriennummer <d12>; Vertrag <d10>; "
    "Zählernummer <d8>; Part no. <d3>-<d4>-<d2>\nTracking <d12>; Katalog <d4> <d3> <d3>; Katalog 0<d3> <d3> "
    "<d3>",
    "panic": "const SEED: u64 = <d18>;\nstatic PRIMES: [u32; 4] = [<d9>, <d10>, <d9>, "
    "<d10>];\nassert_eq!(fnv1a(b\"hello\"), <d19>);\nthread 'main' panicked at src/lib.rs:<n900>:<n90>\nlet v "
    "= vec![<f6>_f64, <f6>_f64];\nrandom.getstate()[1][:4]\n(<d10>, <d9>, <d10>, <d10>)",
    "plan of a query": " Hash Join  (cost=<f2>..<d5>.<d2> rows=<d7> width=<n300>) (actual time=<f3>..<f3> rows=<d7> "
    "loops=1)\n   Buffers: shared hit=<d7> read=<d6>\n         Rows Removed by Filter: <d8>\noid "
    "<d6>  relfilenode <d6> xmin <d9> lsn <h2>/<h8>",
    "positions": "*6 $GPGGA,<z24><z60><z60>.<d2>,<d4>.<d4>,N,0<d4>.<d4>,E,1,08,<r1>,<n900>.<n9>,M,46.9,M,,*<h2>\n*4 "
    "MMSI <d9> IMO <d7> course <f1>",
    "scores": "Pl. Verein        Sp.  S  U  N   Tore   Diff  Pkt\n*5 <n9>.  SV Linden     <n34>  <n20> <n9> <n9>  "
    "<n90>:<n90>  <n50>   <n90>\n*3 100 m: 1. <f2> (-0.<n9>) 2. <f2> (+1.<n9>)\n*3 6-<n5> 3-6 7-6(<n7>) "
    "6-4\nZuschauer: <d2>.<d3>; 4x400 m 2:59,<d2>",
    "sensors": "ts;dev;lat;lon;hPa;rssi;seq\n*9 17<d8>;<d7>;<f6>;<f6>;9<d2>.<d2>;-<n120>;<d7>\n\n*9 <d10> <d9> <r3> "
    "<h4>",
    "shares": "ISIN DE000<d7>, WKN <d6>, SEDOL <d7>, CUSIP <d9>; EUR/USD 1,0<d3>; DAX 1<n9>.<d3>,<d2>\n*8 "
    "1<n9>.11.2026;<f2>;<f2>;<f2>;<d8>",
    "tax table": "Einkommen von ... bis ... EUR | Grundtarif | Splitting\n*9 <d2>.<d3> - <d2>.<d3> | <n9>.<d3> | "
    "<n9>.<d3> | <d3>.<d2>\n*6 <d5> <d4> <d4> <d2>,<d2>",
    "timetable": "*6 ICE <d3>  ab <z24>:<z60>  an <z24>:<z60>  Gl. <n24>  Wg <n30>\n*4 LH<d4> FRA-MUC "
    "0<n9><z60>-1<n9><z60> A320 14F\nMETAR EDDF <d6>Z <d5>KT 9999 NOSIG\nNOTAM A<d4>/26 B) <d10> C) <d10>",
    "docker": "CONTAINER ID   IMAGE   COMMAND   CREATED   STATUS   PORTS\n*6 <h12>   redis:7.<n9>   "
    '"docker-entrypoint.s…"   <n9> days ago   Up <n9> hours   127.0.0.1:<d5>->6379/tcp\nsha256:<h64>\nTotal '
    "reclaimed space: <f2>GB",
    "nvidia": "| <n9>   N/A  N/A   <d6>      C   python   <d5>MiB |\n*4 | 30%   <d2>C    P2   <d3>W / 350W |  <d5>MiB "
    "/ 81559MiB |     <n99>%      Default |\nGPU-<h8>-<h4>-<h4>-<h4>-<h12>  0000000<n9>:01:00.0",
    "strace": '*6 read(<n9>, "\\177ELF\\2\\1\\1\\3"..., <d4>) = <d3>\nmmap(NULL, <d7>, PROT_READ, MAP_PRIVATE, 3, 0) = '
    "0x7f<h10>\nclock_gettime(CLOCK_MONOTONIC, {tv_sec=<d7>, tv_nsec=<d9>}) = 0\nfutex(0x7f<h10>, "
    "FUTEX_WAIT_PRIVATE, <d10>, NULL) = -1 EAGAIN",
    "perf": "*5     <d3>,<d3>,<d3>,<d3>      cycles                    #    <f3> GHz\n     <d3>,<d3>      "
    "branch-misses    #  <f2>% of all branches  ( +-  <r2>% )\n       <f9> seconds time elapsed",
    "gobench": "*6 BenchmarkParse/size=<d5>-16   \t <d7>\t       <d3>.<d1> ns/op\t  <d5> B/op\t      <d2> "
    "allocs/op\nok  \tgithub.com/acme/x\t<f3>s\ncoverage: <f1>% of statements",
    "pytest": "*5 tests/test_x.py::test_case_<d3> PASSED [ <n99>%]\n=== <d4> passed, <d2> skipped in <d3>.<d2>s "
    "(0:0<n9>:<z60>) ===\nE   assert <d10> == <d10>\nx.py:<d3>: AssertionError\nhypothesis seed: <d18>; "
    "@reproduce_failure('6.<n99>.<n9>', b'AXicY2BgAAAABAAB')",
    "pandas": "              count         mean          std\n*6 col<n9>     <d6>.0  <d4>.<d6>  <d3>.<d6>\ndtype: "
    "float64\n*4 <n99>    <d6>   <d3>.<d2>   NaN  <d8>\nInt64Index([<d6>, <d6>, <d6>], dtype='int64', "
    "length=<d6>)",
    "rstat": "Coefficients:\n             Estimate Std. Error t value Pr(>|t|)\n*5 (Intercept) -<f5>    <f5>  <f3>  "
    "<r4> **\nResidual standard error: <f3> on <d4> degrees of freedom\nF-statistic: <f2> on <n9> and <d4> "
    "DF,  p-value: <r4>e-1<n9>\n  Min.   1st Qu.  Median    Mean  3rd Qu.    Max. \n*2 <d4>   <d5>   <d5>   "
    "<d5>   <d5>   <d6>",
    "coins": "*6 tx <h64> block <d6> fee <r8> BTC size <d3>\n0x<h40> nonce <d5> gas <d6> gwei <f9>\nbc1q<h38> "
    "<r8>\nheight=<d6> bits=<d9> difficulty=<d14>.<d2>",
    "bible": "Gen <n50>:<n30>-<n30>; Ps 1<d2>, <n20>-<n20>; Joh 3,16; 1 Kor 13,<n13>; Koran <d2>:<d3>; Aristoteles, "
    "Met. 10<d2>b<d2>; Kant, KrV B <d3>; BWV <d3>, KV <d3>, op. <d2> Nr. <n9>",
    "bibliography": "*6 Journal of Things <d2>(<n9>), <d3>–<d3>. https://doi.org/10.10<d2>/j.x.20<d2>.0<n9>.<d3>\nPMID "
    "<d8>; OCLC <d9>; LCCN <d10>; ISSN <d4>-<d4>; S. <d3>-<d3>; Bd. <d2>, H. <n9>, 19<d2>",
    "law": "*4 BGH, Urteil vom <n28>.<n12>.20<d2> – VI ZR <d3>/<d2>, NJW 20<d2>, <d4> Rn. <d2>\nBT-Drs. 1<n9>/<d5>, S. "
    "<d2> f.; BGBl. I S. <d4>; ABl. L <d3> vom <n28>.<n12>.2016, S. 1; EuGH C-<d3>/<d2>, ECLI:EU:C:20<d2>:<d3>; "
    "Cass. civ. 1re, n° <d2>-<d2>.<d3>; STS <d4>/20<d2>; RG Nr. <d4>/<d4>\nCELEX 3<d4>R<d4>; COM(20<d2>) <d3>; "
    "5 U.S.C. § <d3>; 347 F.3d <d3>",
    "bank": "*6 <n28>.<n12>.2026 Kartenzahlung REWE <d4> -<d2>,<d2> EUR Saldo <n9>.<d3>,<d2>\nBuchungsnr. <d9> "
    "Terminal-ID <d8> TA-Nr. <d6> BNr <d4>\nUmsatz <d1>.<d3>.<d3>,<d2> H; Zinssatz <n9>,<d3> %; Wertstellung "
    "<z28>.<z12>.",
    "weather": "*6 2026-11-0<n9>T<z24>:00 <f1> <d4>.<n9> <n99> <f2> <n360>\nSYNOP AAXX <d5> <d5> <d5> <d5> <d5> <d5> "
    "<d5> <d5> <d5>\nTTAA <d5> <d5> <d5> <d5> <d5> <d5>",
    "iostat": "*6 sda            <f2>       <d5>.<d2>      <d4>.<d2>         0.00  <d9>  <d9>          0\nsdb <d6> "
    "<d5> <d8> <d7> <d6> <d6> <d8> <d7> 0 <d6> <d7>\ncpu  <d8> <d6> <d7> <d9> <d6> 0 <d6> 0 0 0\nintr <d10> "
    "<d2> 9 0 0 <d6>\nbtime 17<d8>\neth0: <d10> <d8>    0    0 <d9> <d7>",
    "dmidecode": "Serial Number: <d12>\nAsset Tag: <d8>\nPart Number: <d6>-<d3>\nModel: ST<d5>NM0<d3>\nS/N: "
    "<d4>-<d4>-<d2>\nUUID: <h8>-<h4>-<h4>-<h4>-<h12>\nWWN 5 000c50 <h9>\nPower_On_Hours <d5>; LBA_Written "
    "<d12>; FW <d4>.<d2>",
    "ethtool": "*5      rx_queue_<n9>_bytes: <d12>\nRX packets <d9>  bytes <d12> (<f1> GiB)\ntcp 0 <d6> 127.0.0.1:<d5> "
    "127.0.0.1:5432 ESTABLISHED <d6>/postgres\nseq <d10>:<d10>, ack <d10>, win <d5>, options [nop,nop,TS "
    "val <d10> ecr <d10>], length <d4>",
    "ffmpeg": "*5 frame= <d5> fps=<d2> q=28.0 size=   <d5>kB time=00:<z60>:<z60>.<d2> bitrate=<d4>.<n9>kbits/s "
    "speed=1.<d2>x\nStream #0:0: Video: h264 (avc1 / 0x31637661), yuv420p, 1920x1080, <d4> kb/s, 29.97 fps, "
    "30k tbn\nDTS <d10>, next:<d11> st:0 invalid dropping",
    "sql": "*6 INSERT INTO t VALUES (<d6>, <d9>, '<h32>', <f4>, '2026-11-0<n9> 10:<z60>:<z60>.<d6>', NULL, "
    "<d10>);\nALTER SEQUENCE s RESTART WITH <d9>;\nSELECT * FROM t WHERE id IN (<d9>, <d9>, <d9>) AND hash = "
    "-<d10> LIMIT <d5> OFFSET <d8>;\nSET @x = <d9>; -- <d4>-<d4>",
    "spanish stats": "Población: <d2>.<d3>.<d3> habitantes. Superficie <d3>.<d3> km². Renta <d2>.<d3> €. "
    "<d2>.<d3>,<d2>\n*6 Provincia | <d3>.<d3> | <d3>.<d3> | <n99>,<n9> | <d9>\nel total de la serie "
    "es <d9> y la media de los datos <d3>.<d3>.<d3>",
    "dutch order": "Uw bestelling met ordernummer <d9> is verzonden. Artikelnummer <d9>, aantal <n9>. De waarde van "
    "het perceel is <d3>.<d3> euro; kadaster <d4> <d4>. Track: 3S<d11>. KvK <d8>, dossier <d9>",
    "polish text": "Nr sprawy <d9>, nr faktury FV/<d4>/20<d2>, KRS 0000<d6>. Działka <d3>/<d2>, księga wieczysta "
    "WA1M/00<d6>/<n9>. Liczba: <d9>, kod <d2>-<d3>. W tabeli jest <d9>",
    "hungarian": "A mintában az érték <d9> és a szórás <d3>. Az elemszám <d8>, a kód <d9>. Szám: <d10>. Iktatószám: "
    "<d5>/20<d2>. Az ár <d3> <d3> Ft, a hely <d9>",
    "czech": "Číslo zakázky <d9>/<d4>, č.j. <d4>/20<d2>, v tabulce je hodnota <d9>, celkem <d1> <d3> <d3> Kč. Parcela "
    "<d4>/<d2>",
    "danish": "Ordre <d8>, og summen er <d3>.<d3>.<d3> kr. Tallet er <d9>. Varenr. <d8>",
    "swedish": "Artikel <d9>, och summan är <d3> <d3> <d3> kr. Koden är 9<d5>-<d4>, raden <d9>.",
    "portuguese": "O processo n.º <d9> e o valor de <d3>.<d3>,<d2> €. A tabela tem <d9> linhas e o total de <d9>. "
    "Encomenda <d9>; artigo <d9>. Lote <d9>, a chave é <d9>",
    "finnish": "Tilaus 9<d5>-<d4>, summa on <d3> <d3> <d2> euroa ja määrä <d8>. Taulukossa on <d7>-<n9> riviä, koodi "
    "<d9>",
    "french": "La commande <d9>, le dossier n° <d13>, la référence <d9>. Le total est de <d3> <d3> <d3> € pour <d9> "
    "unités. SIRET de la société : <d14>. Parcelle <d4>, lot <d9>, page <d3>-<d3>. Le code est <d9>",
    "regex": "^(?:\\+?\\d{1,3}[ -]?)?\\(?\\d{<n9>}\\)?[ .-]?\\d{3}$ s/<d4>/<d4>/g [0-9]{<n9>,<n20>} 0123456789 "
    "1234567890 9876543210 111111111 123456789 000-000-0000",
    "midi": "F0 43 10 4C 00 00 7E 00 F7 <h2> <h2> <h2> <h2>\n#<h6> #<h6> rgb(<n255>,<n255>,<n255>) hsl(<n360> <n99>% "
    "<n99>%)\nU+<h4> &#<d4>; \\u<h4> <d3>-<d3>-<d3>",
    "oeis": "1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377, 610, 987, 1597, 2584, 4181, 6765, 10946, 17711, "
    "28657, 46368, 75025, 121393, 196418, 317811, 514229, 832040, 1346269, 2178309, 3524578\n2 3 5 7 11 13 17 "
    "19 23 29 31 37 41 43 47 53 59 61 67 71 73 79 83 89 97 101 103 107 109 113\n*3 <d3> <d3> <d3> <d3> <d3> "
    "<d3> <d3> <d3>\nsqrt(<d6>) = <d3>.<d12>",
    "game": "*5 HP <d3>/<d3> MP <d2>/<d2> EXP <d6> Gold <d7>\nSeed: -<d18>\nX: <d4>.<d3> Y: <d2>.<d5> Z: "
    "-<d4>.<d3>\nScore <d7> Hi-Score <d8> 1UP <d6>\nFriend code SW-<d4>-<d4>-<d4>",
    "excel": "=SUMME(A<d3>:B<d4>) | =VLOOKUP(<d6>;C2:D<d5>;2;0) | <d5>,<d2> | <d5>/<d5> | <d2>:<d2> | "
    "<d5>E+0<n9>\nZelle: <d5>.<d4>; <d2>-<d3>-<d4>; 4<d4>,<d5> (Datum als Zahl)",
    "fits": "*5 NAXIS1  =                 <d4> / length\nMJD-OBS = <d5>.<d8>\nCRVAL1  =   <d3>.<d12>\nEXPTIME =  "
    "<f5>\nCHECKSUM= 'abc<d8>' DATASUM = '<d10>'",
    "gpx": '*5 <trkpt lat="<d2>.<d7>" lon="<n9>.<d7>"><ele><d3>.<d2></ele></trkpt>\n"coordinates": [[<n9>.<d14>, '
    '<d2>.<d14>], [<n9>.<d14>, <d2>.<d14>]]\nnode id="<d10>" version="<n9>" changeset="<d9>" uid="<d7>" way '
    "<d9> 50.<d5>,8.<d5>",
    "x509": "Serial Number:\n    04:<h2>:<h2>:<h2>:<h2>:<h2>:<h2>:<h2>\n        Modulus:\n            "
    "00:<h2>:<h2>:<h2>:<h2>:<h2>:<h2>:<h2>:<h2>:<h2>:<h2>:<h2>:<h2>\nOID 1.3.6.1.4.1.<d5>.<n9>.<n99>.<d3>; "
    "2.5.29.<n60>\nserial=<d19>\nexponent 65537 (0x10001)",
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
