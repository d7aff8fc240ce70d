"""A backend of our engine on a host that no launcher reaches: what it is known by, in a folder to carry there.

Its leaf, its key, the root to judge the gateway by, the key that checks the gateway's request tokens, and what the
systemd unit `domicile-backend@` reads. Carried again, with a leaf that is valid for longer, the backend takes it up
without a restart (`backend.server.tls`).
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

from audit.files.new_file import make_private_folder
from audit.files.secret_file import write_secret
from gateway.installation.installation import Installation, InstallationError
from regions.fleet.fleet import Role
from regions.identity.authority import CertificateAuthority
from regions.identity.identity import BackendIdentity, GatewayIdentity


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What is served there, and from where: `weights` is a path on that host. `role`, `transfer_port`: as of `backend
    serve`."""

    url: str
    model: str
    weights: str
    role: Role = "mixed"
    transfer_port: int = 0

    @property
    def transfer(self) -> str | None:
        """HOST:PORT where one for prompts listens for the others."""
        return f"{urlsplit(self.url).hostname}:{self.transfer_port}" if self.role == "prefill" else None


@dataclass(frozen=True, slots=True)
class Enrolment:
    """All that can be refused has been looked at, and nothing was written yet."""

    identity: BackendIdentity
    authority: CertificateAuthority
    request_key: Path
    environment: str

    @classmethod
    def prepare(cls, installation: Installation, identity: BackendIdentity, place: ServedModel) -> "Enrolment":
        """Raises InstallationError where the cell's authority is not on this machine, AuthorityError."""
        text = environment(identity, place)
        key = installation.authority_key
        if not key.exists() and key.with_name("ca.pem").exists() and not key.exists():  # one that is made now has both
            raise InstallationError(
                f"this cell's certificates are issued elsewhere; let its authority issue one for {identity.uri}"
            )
        return cls(identity, installation.authority(), installation.request_key(), text)

    def write(self, folder: Path, lifetime: timedelta) -> datetime:
        """Replaces what was in `folder`; says when the leaf ends. Raises AuthorityError, OSError."""
        make_private_folder(folder)
        ends = datetime.now(UTC) + lifetime
        files = self.authority.issue(self.identity, folder, lifetime=lifetime)
        write_secret(folder / "ca.pem", files.root.read_bytes())
        write_secret(folder / "request-key.pem", self.request_key.read_bytes())
        write_secret(folder / "backend.env", self.environment.encode())
        return ends


def environment(identity: BackendIdentity, place: ServedModel) -> str:
    """The unit's EnvironmentFile. Its values passed grammars that have no quote, space or line end."""
    settings = {
        "MODEL": place.weights,
        "SERVED_NAME": place.model,
        "TENANT": identity.tenant,
        "REGION": identity.region,
        "PORT": urlsplit(place.url).port or 443,
        "PEER_URI": GatewayIdentity(identity.cell, identity.tenant).uri,
        "CUDA_VISIBLE_DEVICES": 0,
        "ROLE": place.role,
        "TRANSFER_PORT": place.transfer_port,
    }
    return "".join(f"{name}={_environment_value(str(value), name)}\n" for name, value in settings.items())


def _environment_value(value: str, name: str) -> str:
    """Raises InstallationError for what a line of an EnvironmentFile would read otherwise."""
    if not value or any(not ("!" <= letter <= "~") or letter in "\"'\\$`#;" for letter in value):
        raise InstallationError(
            f"the value {value!r} of {name} cannot be written into a unit's environment; leave out spaces, "
            "quotes, $, # and ;"
        )
    return value
