"""One request's worth of the gateway's own values, made by the real makers: principals, calls, decisions."""

import json
from datetime import UTC, datetime
from time import perf_counter

from gateway.content.prompt import prepare
from gateway.directory.backend_registry import BackendRegistry
from gateway.identity.principal import Principal
from gateway.limits.effective import binding
from gateway.openai.asgi_client import Client
from gateway.openai.checked_call import parse_call
from gateway.openai.endpoints import CHAT
from gateway.policies.compiled import PolicyCompiler
from gateway.records.control import UNBOUNDED, BackendRecord
from gateway.request.enforcement import PolicyEnforcement
from gateway.request.exchange import Exchange
from gateway.request.stages import Decided, Parsed, Redacted, Reserved, Route, Routed
from gateway.request.telemetry import Telemetry
from policy.document.countries import builtin_countries
from regions.catalogue.catalogue import Catalogue
from regions.fleet.fleet import Fleet
from regions.identity.identity import BackendIdentity
from tests.fakes.lab import POLICY, chat

COMPILER = PolicyCompiler(builtin_countries(), bytes(32))


def principal(policy=POLICY, *, tenant="acme", project="main", scopes=UNBOUNDED, error=None, configured=None):
    in_force = COMPILER.compile(tenant, policy) if policy else None
    limits = in_force.policy.limits if in_force else None
    return Principal(
        tenant=tenant,
        project=project,
        key_id="7GA3GXAA",
        purpose="customer support",
        legal_basis="contract",
        data_classes=(),
        risk_class="limited",
        ai_system_id=None,
        scopes=scopes,
        expires_at=None,
        in_force=in_force,
        policy_error=error,
        counters=binding(tenant, project, "7GA3GXAA", configured or {}, limits),
    )


def call(body=None, endpoint=CHAT, **more):
    return parse_call(endpoint, json.dumps(body or chat("hi", **more)).encode())


def client():
    """A client that has sent nothing and takes nothing."""
    return Client({"headers": [], "client": ("127.0.0.1", 40000)}, None, None)


def parsed(body=None, *, who=None, request_id="req-1", asked=None, counted=False, **more):
    """A request after its second step."""
    return Parsed(
        request_id=request_id,
        client=client(),
        principal=who or principal(),
        call=asked or call(body, **more),
        subject=None,
        trace_id=None,
        offered=True,
        counted=counted,
        started=perf_counter(),
    )


def exchange(body=None, **more):
    """How far a request has come after its second step."""
    request = parsed(body, **more)
    made = Exchange(request.call.endpoint, request.client)
    made.parsed = request
    return made


def record(place, url="http://127.0.0.1:1", models=("small",), **more):
    """A backend as the control store knows it; `place` reads tenant/region/id."""
    tenant, region, name = place.split("/")
    uri = BackendIdentity("eu-1", tenant, region, name).uri
    return BackendRecord(
        id=name,
        cell="eu-1",
        tenant=tenant,
        region=region,
        url=url,
        uri=uri,
        models=models,
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
        revoked_at=None,
        **more,
    )


class World:
    """A fleet, described by the catalogue that comes along, and the policy enforcement over it."""

    def __init__(self, *places, **more):
        self.fleet = Fleet()
        self.registry = BackendRegistry(self.fleet, Catalogue.load(None))
        self.telemetry = Telemetry()
        self.enforcement = PolicyEnforcement(self.registry, self.telemetry)
        self.register(*places, **more)

    def register(self, *places, **more):
        self.registry.replace([record(place, **more) for place in places])

    def backend(self, name):
        return next(backend for backend in self.fleet if backend.id == name)

    def route(self, name="acme-1", basis="intra_eea"):
        backend = self.backend(name)
        return Route(backend, self.registry.facts_of(backend), basis)

    def decided(self, request):
        """`request` after the fourth step."""
        decision, redactor = self.enforcement.decide(request)
        return Decided(request, Reserved(request, ()), decision, redactor)

    def routed(self, request, name="acme-1", attempt=0):
        """`request` after the sixth step, on its way to the backend called `name`."""
        decided = self.decided(request)
        prompt = prepare(request.call, decided.redactor, request.principal.project)
        redacted = Redacted(request, decided, decided.decision, prompt, None)
        return Routed(request, redacted, self.route(name), (), attempt, prompt.body)
