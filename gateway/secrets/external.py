"""Tenants' own keys, in their own Vault or HSM, as the configuration names them (``secrets.external``)."""

from collections.abc import Mapping
from functools import partial

from audit.keys.external_keys import ExternalKeys, ExternalMaster
from audit.keys.master import Master
from gateway.configuration.settings import ExternalKey


def external_keys(configured: Mapping[str, ExternalKey]) -> ExternalKeys:
    """None of them is asked before it is used, and none is ever made here: its holder makes it, and takes it away."""
    return ExternalKeys({name: ExternalMaster(name, partial(_open, one)) for name, one in configured.items()})


def _open(settings: ExternalKey) -> Master:
    if settings.provider == "pkcs11":
        from gateway.secrets.pkcs11 import Pkcs11Client, Pkcs11Master

        return Pkcs11Master.open(Pkcs11Client(settings.pkcs11), make=False)
    from gateway.secrets.transit import VaultMaster
    from gateway.secrets.vault import VaultClient  # with its HTTP client, only where there is a Vault

    return VaultMaster.open(VaultClient(settings.vault), settings.vault.key, make=False)
