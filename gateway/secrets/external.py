"""Tenants' own master keys in their Vault or HSM, from the configuration (``secrets.external``)."""

from collections.abc import Mapping
from functools import partial

from audit.keys.external_keys import ExternalKeys, ExternalMaster
from audit.keys.master import Master
from gateway.configuration.settings import ExternalKey


def external_keys(configured: Mapping[str, ExternalKey]) -> ExternalKeys:
    """Return the configured keys. A key is contacted at its first use and never created here: its holder creates and
    withdraws it."""
    return ExternalKeys({name: ExternalMaster(name, partial(_open, one)) for name, one in configured.items()})


def _open(settings: ExternalKey) -> Master:
    if settings.provider == "pkcs11":
        from gateway.secrets.pkcs11 import Pkcs11Client, Pkcs11Master

        return Pkcs11Master.open(Pkcs11Client(settings.pkcs11), make=False)
    from gateway.secrets.transit import VaultMaster
    from gateway.secrets.vault import VaultClient  # imports its HTTP client only if a Vault is configured

    return VaultMaster.open(VaultClient(settings.vault), settings.vault.key, make=False)
