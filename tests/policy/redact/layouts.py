"""Layouts of request bodies: those of the gateway's routes, and one of a Responses input."""

from gateway.openai.endpoints import ENDPOINTS
from policy.redact.request import BodyLayout

LAYOUTS = {endpoint.name: endpoint.layout for endpoint in ENDPOINTS}
LAYOUTS["responses"] = BodyLayout(frozenset({"model", "input", "instructions", "tools", "text"}), {"input": "items"})
CHAT, COMPLETIONS = LAYOUTS["chat"], LAYOUTS["completions"]
BY_URL = {endpoint.path: endpoint.layout for endpoint in ENDPOINTS} | {"/v1/responses": LAYOUTS["responses"]}
