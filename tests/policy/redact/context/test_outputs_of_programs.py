"""Lines that programs print: dumps, checksums, versions, time zones, counters. None of their numbers is anybody's."""

import pytest

from policy.redact.evaluate import find_labelled

XXD = (
    "00000810: 0000 0000 0000 0000 0504 0000 1200 0000  ................\n00001650: 0300 0300 0300 0300 0300 0300 "
    "0300 0800  ................\n000019e0: 5833 0200 0000 0000 0800 0000 0000 0000  X3..............\n00000340: "
    "0500 0000 474e 5500 0280 00c0 0400 0000  ....GNU.........\n"
)
HEXDUMP = (
    "000011b0  00 00 00 00 00 00 00 00  00 91 00 00 00 00 00 00  |................|\n00008650  87 00 00 00 04 "
    "00 00 00  42 00 00 00 00 00 00 00  |........B.......|\n"
)
OBJDUMP = (
    "    2dd8:\tbe 01 00 00 00       \tmov    $0x1,%esi\n    35e4:\t48 63 04 81          \tmovslq "
    "(%rcx,%rax,4),%rax\n    1000:\t06 12 34 56          \tadd\n"
)


@pytest.mark.parametrize(
    "text",
    [
        XXD, HEXDUMP, OBJDUMP,
        "002700000007 R_X86_64_JUMP_SLO 0000000000000000 exit@GLIB",
        "  File: /usr/bin/zip\n Birth: 1970-01-01 00:00:00.000000000 +0000\n",
        "fontconfig (2.13.1-4.5) unstable; urgency=medium",
        "software-properties-common                0.99.30-4.1~deb12u1                 all",
        "status unpacked libpthread-stubs0-dev:amd64 0.4-1\n2025-06-24 status",
        "TLB:     427088   Function call interrupts\nTRM:     516229     427088   TLB shootdowns",
        "when calling a partial\n2644  9.0.1120  tex filetype",
        "in a dialog\n604462 gtktoolitem.c: return-value",
        "and; pass the flag.\n    Closes: #484684.\n",
        "GY\t+0648-05810\tAmerica/Guyana\nIE\t+5320-00615\tEurope/Dublin\nIL\t+314650+0351326\tAsia/Jerusalem",
        "3:1:28 - LMT 1893 N\n3 - EAT 1931\n2:30 - +0230 1957\n",
        "2196897925 4186 /usr/bin/dpkg-realpath\n4839109 8669 /usr/bin/dpkg-scanpackages\n",
        "mobility grouping on.  Total pages: 6291358\n",
        "uv: '1.46.0', v8: '11.3.244.8-node.38'",
        "JIS C 6226, 0201-1976 Roman, 0208-1978, 0208-1983.",
        "0049 0301 ; [.2090.0021.0008] # LATIN CAPITAL LETTER I",
        "0.5191400590023256 1796080044897 572050671070\n0.37986629813045725 1796080046131 652456084312\n",
        "token = uuid.uuid1().hex.encode()",
        "void add(FSDiscriminatorPass P = FSDiscriminatorPass::Pass1)",
        '<xsd:extension base="clm61001:DocumentNameCodeContentType"/>',
        "2147483647 != 0o17777777777; 0o37777777777 != -1",
        "@# updated\n#@\t3991593600\n",
        "Boston, MA 02110-1301 USA", "Boston, MA\n#   02111-1307 USA.",
        ".TH tcgetsid 3 2022-12-15 \"Linux man-pages 6.03\"",
        "as defined in DFARS 252.227-7014, as applicable",
        "usb:v1B52p4202*\n ID_MODEL_FROM_DATABASE=Passport Reader PRM device\n\nusb:v1B52p4203*",
        "6f:cf:7d:58:7d:64:79:e5:a4:09:ac:1e:\n         76:65:3d:94:c4:68\n-----BEGIN CERTIFICATE-----",
        'set(CMAKE_Swift_COMPILER "@CMAKE_Swift_COMPILER@")',
        "Requires: xextproto >= 7.0.99.1", "download/ipy-2/IronPython-2.7.6.3.zip",
        "From ed9010349e8f6351a64ba2c7005fa0c3e40655bd Mon Sep 17 00:00:00 2001",
        "PH\t+143512+1205804\tAsia/Manila",
        "C 71 ; WX 537 ; N Gamma ; B 31 0 714 599 ;\nC 72 ; WX 643 ; N Eta ; B 35 0 835 599 ;",
        "R NY 1921 1954 - S lastSu 2 0 S\nR NY 1955 1966 - O lastSu 2 0 S",
        "PASS: ld/common-1a\nPASS: vers4a\nXFAIL: vers7a\nPASS: vers10b\n",
        "save --creds=username:password containerID docker://localhost:5000/imageId",
        "lnx1135 ln 09.48564268447325 -> 2.249779359074983 Inexact Rounded",
        "Copyright: 2010 Harald Hoyer\n           2016 Iain Lane <i>", "SPDX-FileCopyrightText: 1992, Phillip Street",
        "seconds since January 1, 1970 GMT (the epoch)",
        "2238 2244 2250 2256 2263 2268 2274 2280\n 2286 2292 2298 2304 2311 2317 2323 2329",
        "// Prints: <Buffer 08 07 06 05>", "# U+0390 => 03B9 0308 0301", "# U+0587 => 0565 0582",
        '.\\"      Date: 09/26/2022', "New in IDLE 0.5 (2/15/2000)",
        "too many delete() calls in tests\n  3255  9.0.0720",
        ".TH setup 2 2022-10-30 \"Linux man-pages\"", "Reset version from 1.2.0.0 to 1.2.0",
        '"encryptionKey": "arn:aws:kms:us-west-2:123456789012:alias/aws/s3"',
        "Malloc rbytes data to pass to _XRead2*, but use",
        "patient,age\n\"0020980835\",11.5,0,1,0,0,0\n",
    ],
)  # fmt: skip
def test_what_programs_print_holds_no_personal_numbers(text):
    assert [(text[start:end], label) for start, end, label in find_labelled(text)] == []


@pytest.mark.parametrize(
    ("text", "value", "label"),
    [
        ("call 0049 30 901820", "0049 30 901820", "phone"),
        ("office: 0044 20 7946 0958", "0044 20 7946 0958", "phone"),
        ("ufficio +39 06 6982 1234", "+39 06 6982 1234", "phone"),
        ("+49 (0)30 901820", "+49 (0)30 901820", "phone"),
        ("Tel 0049  30  901820", "0049  30  901820", "phone"),
        ("reach us by calling the hotline 0800 123 4567", "0800 123 4567", "phone"),
        ("mobile 0171 2345678", "0171 2345678", "phone"),
        ('{"birthDate": "1980-05-12 00:00:00.000"}', "1980-05-12", "date_of_birth"),
        ("born 1980-05-12 07:30:00", "1980-05-12", "date_of_birth"),
        ("Karte 5833 0200 0000 0000", "5833 0200 0000 0000", "card"),
        ("login from 84.12.1.34-dsl", "84.12.1.34", "ip"),
        ("Tel O3O 9O1820", "O3O 9O1820", "phone"),
        ("(212) 555-0123", "(212) 555-0123", "phone"),
        ("Anna;45807302;anna@example.org", "45807302", "phone"),
        ("mac 48:ba:8d:9a:66:ee", "48:ba:8d:9a:66:ee", "mac"),
        ("SWIFT: DEUTDEFF", "DEUTDEFF", "bic"),
        ("ipp://84.12.1.34:631/printers", "84.12.1.34", "ip"),
        ("cards 4111 1111 1111 1111 5500 0000 0000 0004", "5500 0000 0000 0004", "card"),
        ("2016 Main Street", "2016 Main Street", "address"),
        ("Anna calls from 030 1234567", "030 1234567", "phone"),
        ("USER: bob\nPASS: hunter2", "hunter2", "secret"),
        ("token = ab.c1de2(xyz)x", "ab.c1de2(xyz)x", "secret"),
    ],
)
def test_the_same_shapes_of_a_person_are_found(text, value, label):
    assert (value, label) in [(text[start:end], found) for start, end, found in find_labelled(text)]
