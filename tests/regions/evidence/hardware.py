"""Makes evidence as hardware does, under authorities of our own, so that each part can be spoiled."""

import base64
import json
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import NameOID

from regions.evidence.attestation import Evidence, Reference, binding
from regions.evidence.certificate_chains import fingerprint

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
NONCE, KEY, WEIGHTS = b"n" * 32, "ab" * 32, "cd" * 32
BOUND = binding(NONCE, KEY, WEIGHTS)
Key = ec.EllipticCurvePrivateKey


def name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


class Chain:
    """A leaf under an intermediate under a root, on one curve, all valid for a year. `label`: begins their names."""

    def __init__(self, curve: ec.EllipticCurve, more: tuple[x509.ExtensionType, ...] = (), label: str = ""):
        self.begin, self.label = NOW - timedelta(days=1), label
        self.root_key, self.middle_key, self.key = (ec.generate_private_key(curve) for _ in range(3))
        self.root = self.issue("root", self.root_key, "root", self.root_key, ca=True)
        self.middle = self.issue("middle", self.middle_key, "root", self.root_key, ca=True)
        self.leaf = self.issue("leaf", self.key, "middle", self.middle_key, ca=False, more=more)

    def issue(
        self, subject: str, key: Key, issuer: str, by: Key, *, ca: bool, more: tuple[x509.ExtensionType, ...] = ()
    ) -> x509.Certificate:
        builder = (
            x509.CertificateBuilder()
            .subject_name(name(self.label + subject))
            .issuer_name(name(self.label + issuer))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(self.begin)
            .not_valid_after(self.begin + timedelta(days=365))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        )
        for extension in more:
            builder = builder.add_extension(extension, critical=False)
        return builder.sign(by, hashes.SHA384())

    @property
    def pem(self) -> str:
        return pem(self.leaf, self.middle, self.root)

    @property
    def roots(self) -> frozenset[str]:
        return frozenset({fingerprint(self.root.public_key())})

    def revoked(self, *certificates: x509.Certificate, ends: datetime | None = None) -> x509.CertificateRevocationList:
        """The list of the middle authority."""
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(name(self.label + "middle"))
            .last_update(self.begin)
            .next_update(ends or NOW + timedelta(days=30))
        )
        for each in certificates:
            entry = x509.RevokedCertificateBuilder().serial_number(each.serial_number).revocation_date(self.begin)
            builder = builder.add_revoked_certificate(entry.build())
        return builder.sign(self.middle_key, hashes.SHA384())


def pem(*certificates: x509.Certificate) -> str:
    return "".join(each.public_bytes(Encoding.PEM).decode() for each in certificates)


def signed(key: Key, content: bytes, kind: hashes.HashAlgorithm, width: int, order: str = "big") -> bytes:
    """`r` and `s`, each in `width` bytes."""
    r, s = decode_dss_signature(key.sign(content, ec.ECDSA(kind)))
    return b"".join(half.to_bytes(width, order) for half in (r, s))  # type: ignore[arg-type]


def b64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def evidence(technology: str, report: bytes, certificates: str, signature: bytes = b"") -> Evidence:
    body = {"technology": technology, "report": b64(report), "certificates": certificates, "signature": b64(signature)}
    return Evidence.model_validate(body)


# --- SEV-SNP ---------------------------------------------------------------------------------------------------------

CHIP = b"chip" * 16
VERSIONS = {"bootloader": 4, "tee": 0, "snp": 27, "microcode": 222}
MEASUREMENT = b"m" * 48


def extension(oid: str, der: bytes) -> x509.UnrecognizedExtension:
    return x509.UnrecognizedExtension(x509.ObjectIdentifier(oid), der)


def integer(value: int) -> bytes:
    content = value.to_bytes(value.bit_length() // 8 + 1)
    return bytes((2, len(content))) + content


def vcek(chip: bytes = CHIP, **versions: int) -> tuple[x509.UnrecognizedExtension, ...]:
    found = VERSIONS | versions
    places = {"bootloader": 1, "tee": 2, "snp": 3, "microcode": 8}
    return (
        extension("1.3.6.1.4.1.3704.1.4", chip),
        *(extension(f"1.3.6.1.4.1.3704.1.3.{at}", integer(found[each])) for each, at in places.items()),
    )


def snp_report(key: Key, **fields: Any) -> bytes:
    report = bytearray(0x4A0)

    def put(at: int, content: bytes) -> None:
        report[at : at + len(content)] = content

    put(0, fields.get("version", 2).to_bytes(4, "little"))
    put(8, fields.get("policy", 0x30000).to_bytes(8, "little"))
    put(0x30, fields.get("vmpl", 0).to_bytes(4, "little"))
    put(0x34, fields.get("algorithm", 1).to_bytes(4, "little"))
    put(0x48, fields.get("flags", 0).to_bytes(4, "little"))
    put(0x50, fields.get("data", BOUND))
    put(0x90, fields.get("measurement", MEASUREMENT))
    versions = VERSIONS | fields.get("versions", {})
    for each, at in {"bootloader": 0, "tee": 1, "snp": 6, "microcode": 7}.items():
        report[0x180 + at] = versions[each]
    put(0x1A0, fields.get("chip", CHIP))
    put(0x2A0, signed(key, bytes(report[:0x2A0]), hashes.SHA384(), 72, "little"))
    return bytes(report)


def snp(chain: Chain | None = None, **fields: Any) -> tuple[Evidence, Reference]:
    chain = chain or Chain(ec.SECP384R1(), vcek())
    reference = Reference(roots=chain.roots, measurements=frozenset({MEASUREMENT.hex()}))
    return evidence("sev-snp", snp_report(chain.key, **fields), chain.pem), reference


# --- TPM -------------------------------------------------------------------------------------------------------------

PCRS = (0, 2, 4, 7)
DIGEST = sha256(b"registers").digest()


def sized(content: bytes) -> bytes:
    return len(content).to_bytes(2) + content


def tpm_quote(**fields: Any) -> bytes:
    selected = bytearray(3)
    for at in fields.get("pcrs", PCRS):
        selected[at // 8] |= 1 << at % 8
    return b"".join(
        (
            fields.get("magic", 0xFF544347).to_bytes(4),
            fields.get("kind", 0x8018).to_bytes(2),
            sized(b"\x00\x0b" + bytes(32)),
            sized(fields.get("data", BOUND[:32])),
            bytes(17),
            fields.get("firmware", 7).to_bytes(8),
            (1).to_bytes(4) + fields.get("bank", 0x000B).to_bytes(2) + bytes((len(selected),)) + bytes(selected),
            sized(fields.get("digest", DIGEST)),
        )
    )


def tpm(chain: Chain | None = None, **fields: Any) -> tuple[Evidence, Reference]:
    chain = chain or Chain(ec.SECP256R1())
    report = tpm_quote(**fields)
    pair = signed(chain.key, report, hashes.SHA256(), 32)
    signature = (0x0018).to_bytes(2) + (0x000B).to_bytes(2) + sized(pair[:32]) + sized(pair[32:])
    reference = Reference(roots=chain.roots, measurements=frozenset({DIGEST.hex()}), pcrs=PCRS)
    return evidence("tpm", report, chain.pem, signature), reference


# --- NVIDIA ----------------------------------------------------------------------------------------------------------

GOLDEN = {1: b"1" * 48, 2: b"2" * 48, 3: b"varies" * 8}


def gpu_report(key: Key, **fields: Any) -> bytes:
    values = GOLDEN | fields.get("values", {})
    record = b"".join(
        bytes((at, 1)) + (len(value) + 3).to_bytes(2, "little") + b"\x01" + len(value).to_bytes(2, "little") + value
        for at, value in values.items()
    )
    request = b"\x11\xe0\x01\xff" + fields.get("nonce", BOUND[:32]) + b"\x00"
    head = b"\x11\x60\x00\x00" + bytes((len(values),)) + len(record).to_bytes(3, "little")
    content = request + head + record + bytes(32) + (4).to_bytes(2, "little") + b"\x22\x00\x00\x00"
    return content + signed(key, content, hashes.SHA384(), 48)


def gpu(chain: Chain | None = None, **fields: Any) -> tuple[Evidence, Reference]:
    chain = chain or Chain(ec.SECP384R1())
    golden = {at: frozenset({GOLDEN[at].hex()}) for at in (1, 2)}
    return evidence("nvidia", gpu_report(chain.key, **fields), chain.pem), Reference(roots=chain.roots, golden=golden)


# --- TDX -------------------------------------------------------------------------------------------------------------

SGX = "1.2.840.113741.1.13.1"
FMSPC, PCEID = "b0c06f000000", "0000"
COMPONENTS = (5, 5, 2, 2, 3, 1, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0)
TEE_SVN = bytes((7, 1, 2)) + bytes(13)
MRTD = b"t" * 48
SIGNER = b"q" * 32


def der(tag: int, content: bytes) -> bytes:
    size = len(content)
    length = bytes((size,)) if size < 128 else bytes((0x82,)) + size.to_bytes(2)
    return bytes((tag,)) + length + content


def oid(dotted: str) -> bytes:
    arcs = [int(each) for each in dotted.split(".")]
    content = bytes((40 * arcs[0] + arcs[1],))
    for arc in arcs[2:]:
        septets = [arc & 0x7F]
        while arc := arc >> 7:
            septets.insert(0, arc & 0x7F | 0x80)
        content += bytes(septets)
    return der(6, content)


def pck(components: tuple[int, ...] = COMPONENTS, fmspc: str = FMSPC) -> tuple[x509.UnrecognizedExtension, ...]:
    def pair(name: str, value: bytes) -> bytes:
        return der(0x30, oid(name) + value)

    svns = [pair(f"{SGX}.2.{at}", integer(svn)) for at, svn in enumerate((*components, 13), 1)]
    fields = [
        pair(f"{SGX}.1", der(4, bytes(16))),
        pair(f"{SGX}.2", der(0x30, b"".join(svns) + pair(f"{SGX}.2.18", der(4, bytes(16))))),
        pair(f"{SGX}.3", der(4, bytes.fromhex(PCEID))),
        pair(f"{SGX}.4", der(4, bytes.fromhex(fmspc))),
    ]
    return (extension(SGX, der(0x30, b"".join(fields))),)


def collateral(signer: Chain, **changes: Any) -> dict[str, str]:
    """As Intel's service answers, for the platform of `pck`. `status`, `module_status`, `qe_status`, `ends`, `svn`."""
    times = {"issueDate": "2026-11-01T00:00:00Z", "nextUpdate": changes.get("ends", "2026-12-31T00:00:00Z")}

    def level(status: str, tcb: Any) -> dict[str, Any]:
        return {"tcb": tcb, "tcbDate": "2026-01-01T00:00:00Z", "tcbStatus": status}

    sgx = [{"svn": svn} for svn in changes.get("components", COMPONENTS)]
    tdx = [{"svn": svn} for svn in changes.get("tdx", TEE_SVN)]
    info = {
        "id": "TDX", "version": 3, **times, "fmspc": changes.get("fmspc", FMSPC), "pceId": PCEID,
        "tdxModule": {"mrsigner": "00" * 48, "attributes": "00" * 8, "attributesMask": "FF" * 8},
        "tdxModuleIdentities": [
            {"id": "TDX_01", "mrsigner": changes.get("module_signer", "00" * 48), "attributes": "00" * 8,
             "attributesMask": "FF" * 8, "tcbLevels": [level(changes.get("module_status", "UpToDate"), {"isvsvn": 7})]}
        ],
        "tcbLevels": [
            level(
                changes.get("status", "UpToDate"),
                {"sgxtcbcomponents": sgx, "pcesvn": 13, "tdxtcbcomponents": tdx},
            )
        ],
    }  # fmt: skip
    identity = {
        "id": "TD_QE", "version": 2, **times, "miscselect": "00000000", "miscselectMask": "FFFFFFFF",
        "attributes": "11" + "00" * 15, "attributesMask": "FB" + "FF" * 7 + "00" * 8,
        "mrsigner": SIGNER.hex().upper(), "isvprodid": 2,
        "tcbLevels": [level(changes.get("qe_status", "UpToDate"), {"isvsvn": 4})],
    }  # fmt: skip

    def file(member: str, value: Any) -> str:
        raw = json.dumps(value, separators=(",", ":"))
        signature = signed(signer.key, raw.encode(), hashes.SHA256(), 32).hex()
        return f'{{"{member}":{raw},"signature":"{signature}"}}'

    return {
        "tcb_info": file("tcbInfo", info),
        "qe_identity": file("enclaveIdentity", identity),
        "certificates": signer.pem,
    }


def tdx_quote(chain: Chain, **fields: Any) -> bytes:
    version = fields.get("version", 4)
    attestation = ec.generate_private_key(ec.SECP256R1())
    point = attestation.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)[1:]
    header = version.to_bytes(2, "little") + (2).to_bytes(2, "little") + (0x81).to_bytes(4, "little") + bytes(4)
    header += bytes.fromhex("939a7233f79c4ca9940a0db3957f0607") + bytes(20)
    kind, size = fields.get("body", (3, 648)) if version == 5 else (0, 584)
    body = bytearray(size)
    body[:16] = fields.get("svn", TEE_SVN)
    if size > 584:
        body[584:600] = fields.get("svn_now", TEE_SVN)
    body[64:112] = fields.get("seam_signer", bytes(48))
    body[112:120] = fields.get("seam", bytes(8))
    body[120:128] = fields.get("attributes", b"\x00\x00\x00\x10" + bytes(4))
    body[136:184] = MRTD
    body[520:584] = fields.get("data", BOUND)
    described = kind.to_bytes(2, "little") + len(body).to_bytes(4, "little") if version == 5 else b""
    content = header + described + bytes(body)
    said = b"authentication data"
    enclave = bytearray(384)
    enclave[48] = fields.get("qe_attributes", 0x15)
    enclave[128:160] = fields.get("signer", SIGNER)
    enclave[256:258] = (2).to_bytes(2, "little")
    enclave[258:260] = fields.get("qe_svn", 4).to_bytes(2, "little")
    enclave[320:352] = sha256(fields.get("vouched", point) + said).digest()
    pem_chain = chain.pem.encode()
    inner = (
        bytes(enclave)
        + signed(chain.key, bytes(enclave), hashes.SHA256(), 32)
        + len(said).to_bytes(2, "little")
        + said
        + (5).to_bytes(2, "little")
        + len(pem_chain).to_bytes(4, "little")
        + pem_chain
    )
    outer = signed(attestation, content, hashes.SHA256(), 32) + point
    outer += (6).to_bytes(2, "little") + len(inner).to_bytes(4, "little") + inner
    return content + len(outer).to_bytes(4, "little") + outer


def tdx(chain: Chain | None = None, more: dict[str, Any] | None = None, **fields: Any) -> tuple[Evidence, Reference]:
    """`more`: changes of the collateral, which the same root signs."""
    chain = chain or Chain(ec.SECP256R1(), pck())
    signer = Chain(ec.SECP256R1(), label="TCB ")
    known = {FMSPC: collateral(signer, **(more or {}))}
    reference = Reference(roots=chain.roots | signer.roots, measurements=frozenset({MRTD.hex()}), collateral=known)
    return evidence("tdx", tdx_quote(chain, **fields), ""), reference
