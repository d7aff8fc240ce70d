"""Compilation of stored policy documents to rules and a redactor."""

import hmac
from hashlib import sha256
from pathlib import Path
from secrets import token_bytes

from gateway.identity.principal import PolicyInForce
from policy.analysis.policy_tests import check_policy
from policy.decision.compile import compile_policy
from policy.document.document import load_document
from policy.facts import CountrySets
from policy.redact.redactor import Redactor
from regions.identity.encrypted_file import PLAIN, SecretFiles

SECRET_SIZE = 32


class PolicyCompiler:
    """Compiles against one country table. `secret` keys the redaction action ``hash``, differently for each tenant."""

    def __init__(self, countries: CountrySets, secret: bytes) -> None:
        if len(secret) < SECRET_SIZE:
            raise ValueError(
                f"the redaction secret must have at least {SECRET_SIZE} bytes, this has {len(secret)}"
                "; restore the file, or take the key set over again"
            )
        self._countries = countries
        self._secret = secret

    @classmethod
    def open(cls, countries: CountrySets, path: Path, files: SecretFiles = PLAIN) -> "PolicyCompiler":
        """With the secret in `path`, created (mode 0600) on first use. Raises LoosePermissions, ValueError if short."""
        return cls(countries, files.create(path, token_bytes(SECRET_SIZE)))

    def compile(
        self, tenant: str, document: str, project_document: str | None = None, operator_document: str | None = None
    ) -> PolicyInForce:
        """The policy in force for `tenant`, or for a project with its own document, under the operator's document.

        Raises PolicyError.
        """
        project = None if project_document is None else load_document(project_document)
        operator = None if operator_document is None else load_document(operator_document)
        policy = compile_policy(load_document(document), project, self._countries, operator=operator)
        hash_key = hmac.digest(self._secret, b"redaction hash\0" + tenant.encode(), sha256)
        return PolicyInForce(policy, Redactor(policy.redaction, hash_key=hash_key))

    def check(
        self, tenant: str, document: str, project_document: str | None = None, operator_document: str | None = None
    ) -> PolicyInForce:
        """As `compile`; the tests in the document must pass too, as for an activation. Raises PolicyError."""
        in_force = self.compile(tenant, document, project_document, operator_document)
        check_policy(in_force.policy, self._countries)
        return in_force
