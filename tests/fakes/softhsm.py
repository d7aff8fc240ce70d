"""SoftHSM: a token in a folder, behind the same PKCS#11 interface as an HSM (Debian's package softhsm2)."""

import shutil
import subprocess
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gateway.configuration.settings import Pkcs11
from tests.fakes.needs import missing

MODULES = ("/usr/lib/softhsm/libsofthsm2.so", "/usr/lib/x86_64-linux-gnu/softhsm/libsofthsm2.so")
PIN = "1234"


@dataclass
class SoftHsm:
    """Tokens of one folder. `module`: the library."""

    folder: Path
    module: str

    @property
    def tokens(self):
        return self.folder / "tokens"

    def token(self, label):
        words = ["--init-token", "--free", "--label", label, "--pin", PIN, "--so-pin", "5678"]
        subprocess.run(["softhsm2-util", *words], check=True, capture_output=True, timeout=60)
        (self.folder / "pin").write_text(f"{PIN}\n")
        (self.folder / "pin").chmod(0o600)
        return label

    def settings(self, token="domicile", **more):
        return Pkcs11(module=Path(self.module), token=token, pin_file=self.folder / "pin", timeout_s=20, **more)


@contextmanager
def softhsm(folder, monkeypatch):
    module = next((one for one in MODULES if Path(one).exists()), None)
    if module is None or shutil.which("softhsm2-util") is None:
        missing("needs SoftHSM: apt install softhsm2")
    made = SoftHsm(folder, module)
    made.tokens.mkdir(parents=True)
    config = folder / "softhsm2.conf"
    config.write_text(f"directories.tokendir = {made.tokens}\nobjectstore.backend = file\nlog.level = ERROR\n")
    monkeypatch.setenv("SOFTHSM2_CONF", str(config))
    yield made
