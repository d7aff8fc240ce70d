"""An API server of Kubernetes as far as a launcher meets it, on loopback over TLS.

Objects are checked against the OpenAPI schemas that Kubernetes publishes (strict: no unknown field), and every call
against the Role that deploy/ gives a gateway. A controller brings Deployments to ready, unless told otherwise. Nothing
runs in its pods.
"""

import asyncio
import ipaddress
import shutil
import ssl
import warnings
from contextlib import asynccontextmanager
from copy import deepcopy
from pathlib import Path

import yaml
from aiohttp import web
from cryptography import x509

from tests.backend.certificates import Authority

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import kubernetes_validate

VERSIONS = ("1.28", "1.34", "1.37")
"""Of Kubernetes: the oldest that docs/operations.md names, one between, and the newest whose schemas there are."""
TOKEN = "a-pod-s-token"
ROLE = Path(__file__).parents[2] / "deploy" / "kubernetes" / "base" / "access.yaml"
KINDS = {
    "secrets": "Secret", "services": "Service", "deployments": "Deployment", "networkpolicies": "NetworkPolicy",
    "poddisruptionbudgets": "PodDisruptionBudget",
}  # fmt: skip


def check(object, versions=VERSIONS):
    """Raises kubernetes_validate.ValidationError for what an API server of one of `versions` would refuse."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for version in versions:
            kubernetes_validate.validate(object, version, strict=True)


class FakeKubernetes:
    def __init__(self):
        self.objects = {}  # (plural, name) -> object
        self.calls = []  # "VERB plural"
        self.faults = []  # statuses for the next calls; None: cut the connection
        self.stuck = None  # why no pod becomes ready
        self.slow_s = 0.0
        self.address = "10.96.0.7"  # of every Service
        self.rules = [
            (group, resource, verb)
            for document in yaml.safe_load_all(ROLE.read_text())
            for rule in document.get("rules", ())
            for group in rule["apiGroups"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
        ]

    def app(self):
        app = web.Application()
        app.router.add_route("*", "/api/v1/namespaces/{namespace}/{plural}{rest:.*}", self._answer)
        app.router.add_route("*", "/apis/{group}/v1/namespaces/{namespace}/{plural}{rest:.*}", self._answer)
        return app

    def get(self, plural, name):
        return self.objects.get((plural, name))

    async def _answer(self, request):
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            return _status(401, "Unauthorized")
        if self.faults:
            fault = self.faults.pop(0)
            if fault is None:
                request.transport.abort()
                return web.Response()
            return _status(fault, f"a fault of {fault}")
        plural = request.match_info["plural"]
        name, _, sub = request.match_info["rest"].strip("/").partition("/")
        resource = f"{plural}/{sub}" if sub else plural
        verb = {"GET": "get" if name else "list", "PATCH": "patch", "DELETE": "delete", "POST": "create"}[
            request.method
        ]
        self.calls.append(f"{verb} {resource}")
        group = request.match_info.get("group", "")
        allowed = (group, resource, verb) in self.rules and request.match_info["namespace"] == "domicile-backends"
        if not allowed:
            return _status(403, f"cannot {verb} {resource} in {request.match_info['namespace']}")
        return await getattr(self, f"_{verb}")(request, plural, name, sub)

    async def _get(self, request, plural, name, sub):
        found = deepcopy(self.objects.get((plural, name)))
        if found and plural == "services":  # an API server gives each an address
            found["spec"]["clusterIP"] = self.address
        return web.json_response(found) if found else _status(404, f'{plural} "{name}" not found')

    async def _list(self, request, plural, name, sub):
        wanted = dict(pair.split("=") for pair in request.query["labelSelector"].split(","))
        found = [
            object
            for (kind, _), object in sorted(self.objects.items())
            if kind == plural and wanted.items() <= object["metadata"]["labels"].items()
        ]
        begin = int(request.query.get("continue", 0))
        page = found[begin : begin + 2]  # small, so that the second page is met
        more = {"continue": str(begin + 2)} if begin + 2 < len(found) else {}
        return web.json_response({"kind": f"{KINDS[plural]}List", "metadata": more, "items": page})

    async def _patch(self, request, plural, name, sub):
        sent = yaml.safe_load(await request.read())
        known = self.objects.get((plural, name))
        if sub == "scale":
            if known is None:
                return _status(404, "not found")
            known["spec"]["replicas"] = sent["spec"]["replicas"]
            return self._changed(known)
        if request.content_type != "application/apply-patch+yaml" or request.query.get("fieldManager") != "domicile":
            return _status(415, "an apply names its field manager")
        if (sent["kind"], sent["metadata"]["name"]) != (KINDS[plural], name):
            return _status(400, "the object is not that of the path")
        try:
            check(sent, VERSIONS[1:2])
        except kubernetes_validate.ValidationError as error:
            return _status(422, f"{KINDS[plural]} {name} is invalid: {error.message}")
        content = "spec" if "spec" in sent else "data"
        if known is not None and known[content] == sent[content]:
            return web.json_response(known)
        metadata = (known or {"metadata": {"generation": 0}})["metadata"]
        kept = {**deepcopy(sent), "status": (known or {}).get("status", {})}
        kept["metadata"]["generation"] = metadata["generation"]
        self.objects[plural, name] = kept
        return self._changed(kept)

    async def _delete(self, request, plural, name, sub):
        if self.objects.pop((plural, name), None) is None:
            return _status(404, "not found")
        return web.json_response({"kind": "Status", "status": "Success"})

    def _changed(self, object):
        object["metadata"]["generation"] += 1
        if object["kind"] == "Deployment":
            asyncio.get_running_loop().call_later(self.slow_s, self._settle, object)
        return web.json_response(object)

    def _settle(self, object):
        """What the Deployment controller and kubelet would have come to."""
        replicas = object["spec"]["replicas"]
        if self.stuck is not None:
            why = {"reason": "ProgressDeadlineExceeded", "message": self.stuck}
            object["status"] = {"conditions": [{"type": "Progressing", "status": "False", **why}]}
            return
        object["status"] = {
            "observedGeneration": object["metadata"]["generation"],
            "replicas": replicas, "updatedReplicas": replicas, "availableReplicas": replicas,
        }  # fmt: skip


def _status(code, message):
    return web.json_response({"kind": "Status", "status": "Failure", "message": message, "code": code}, status=code)


@asynccontextmanager
async def running(fake, folder):
    """Yields its URL; `folder` then holds ``token`` and ``ca.crt`` as a pod's account does."""
    authority = Authority(folder)
    files = authority.issue("server", [x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(files.cert, files.key)
    (folder / "token").write_text(TOKEN + "\n")
    shutil.copyfile(authority.cert, folder / "ca.crt")
    runner = web.AppRunner(fake.app())
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    try:
        yield f"https://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"
    finally:
        await runner.cleanup()
