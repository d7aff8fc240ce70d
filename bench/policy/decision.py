"""How long a decision takes: ``python -m bench.policy.decision``. Budget: 50 us for 100 rules and 50 backends.

`warm` is what a request pays: the policy has seen this kind of request and these backends today. `cold` is the first
decision of a kind after a policy, the fleet or the day changed.
"""

import json
from datetime import UTC, datetime
from time import thread_time_ns

from policy.decision.compile import CompiledPolicy, compile_policy
from policy.decision.decision import decide
from policy.document.countries import builtin_countries
from policy.document.document import load_document
from policy.facts import BackendFacts, RequestFacts

RULES, BACKENDS, ROUNDS = 100, 50, 2000
COUNTRIES = ("FR", "DE", "NL", "US", "CH")


def policy(rules: int = RULES) -> CompiledPolicy:
    """Every rule applies to the request below, so that none is skipped."""
    document = {
        "policy": "bench",
        "version": 1,
        "residency": {
            "process_in": "EEA",
            "store_in": "EEA",
            "operator": {"head_office": "EEA", "ultimate_parent": "EEA"},
        },
        "rules": [
            {"name": f"rule-{n}", "when": {"data_classes": ["contact"]}, "process_in": ["FR", "DE", "NL"]}
            for n in range(rules)
        ],
    }
    return compile_policy(load_document(json.dumps(document)), None, builtin_countries())


def request(backends: int = BACKENDS) -> RequestFacts:
    return RequestFacts(
        tenant="acme",
        project="shop",
        model="m",
        at=datetime(2026, 11, 28, 12, tzinfo=UTC),
        purpose="support",
        legal_basis="contract",
        data_classes=("contact",),
        risk_class="limited",
        candidates=tuple(_backend(n, COUNTRIES[n % len(COUNTRIES)]) for n in range(backends)),
    )


def _backend(number: int, country: str) -> BackendFacts:
    return BackendFacts(
        backend_id=f"backend-{number}",
        tenant="acme",
        region=f"region-{country.lower()}",
        compute_country=country,
        storage_country=country,
        operator="Operator",
        operator_hq=country,
        ultimate_parent="Parent",
        parent_country=country,
        models=("m",),
    )


def measure(rounds: int = ROUNDS) -> dict[str, float]:
    compiled, facts = policy(), request()
    cold = _times(50, lambda: (compiled.case_cache.clear(), decide(compiled, facts)))[25]
    decide(compiled, facts)
    warm = _times(rounds, lambda: decide(compiled, facts))
    return {
        "rules": RULES,
        "backends": BACKENDS,
        "warm_p50_us": warm[rounds // 2] / 1000,
        "warm_p99_us": warm[rounds * 99 // 100] / 1000,
        "cold_us": cold / 1000,
    }


def _times(rounds: int, work: "object") -> list[int]:
    assert callable(work)
    times = []
    for _ in range(rounds):
        began = thread_time_ns()
        work()
        times.append(thread_time_ns() - began)
    return sorted(times)


if __name__ == "__main__":
    print(json.dumps(measure(), indent=1))
