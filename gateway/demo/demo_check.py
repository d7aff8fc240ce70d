"""``domicile demo --check``: tries what the demonstration shows, as a newcomer would, and reports each result."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from rich.console import Console

from audit.external_service import ExternalService, ExternalUnavailable
from gateway.demo.guide import LETTER, PERSONAL, QUESTION, chat_body, curl, sdk_program
from gateway.demo.scene import Keys

MAIL, IBAN = "anna.schmidt@example.org", "DE89 3704 0044 0532 0130 00"
TIMEOUT_S = 180
GATEWAY = ExternalService("the gateway", deadline_s=TIMEOUT_S)
CITY = {"type": "string", "pattern": "^[A-Z][a-z]{2,15}$"}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city",
        "parameters": {
            "type": "object", "properties": {"city": CITY}, "required": ["city"], "additionalProperties": False
        },
    },
}  # fmt: skip


class CheckFailed(Exception):
    """What was expected and what came instead."""


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    body: Any

    @property
    def text(self) -> str:
        return str(self.body["choices"][0]["message"]["content"])


def run_checks(console: Console, base: str, keys: Keys, data: Path) -> bool:
    """One line each; True if all passed. Blocking: run it in a thread."""
    bench = _Bench(base, keys, data)
    checks: list[tuple[str, Callable[[], str]]] = [
        ("an answer, with curl", bench.answer_with_curl),
        ("an answer and a stream, with OpenAI's Python SDK", bench.sdk),
        ("a call of a function, held to its schema", bench.tool_call),
        ("personal data reaches the model only as placeholders", bench.personal_data),
        ("a US-owned backend is refused, with the reason", bench.refusal),
        ("the same backend serves the project whose policy allows it", bench.other_project),
        ("a wrong key opens nothing", bench.wrong_key),
        ("every part is ready", bench.ready),
        ("the receipt of an answer is in the log", bench.receipt),
        ("domicile audit verify", bench.audit_verify),
    ]
    failed = 0
    for name, check in checks:
        began = perf_counter()
        try:
            result, mark = check(), "[green]pass[/green]"
        except Exception as error:  # a check reports whatever happened
            failed += 1
            result, mark = f"{type(error).__name__}: {error}", "[red]FAIL[/red]"
        console.print(f"{mark}  {name} [dim]({perf_counter() - began:.1f} s)[/dim]", soft_wrap=True)
        console.print("      " + result.replace("\n", "\n      "), markup=False, style="dim", soft_wrap=True)
    console.print(f"{len(checks) - failed} passed, {failed} failed")
    return failed == 0


class _Bench:
    def __init__(self, base: str, keys: Keys, data: Path) -> None:
        self.base, self.keys, self.data = base, keys, data

    def answer_with_curl(self) -> str:
        if shutil.which("curl") is None:
            text = self._ask(self.keys.acme, chat_body(QUESTION)).text
        else:
            text = json.loads(_run(curl(self.base, self.keys.acme, chat_body(QUESTION))))["choices"][0]["message"][
                "content"
            ]
        _expect("Paris" in text, f"the answer to {QUESTION!r} names Paris", text)
        return text

    def sdk(self) -> str:
        streamed = _run([sys.executable, "-c", sdk_program(self.base, self.keys.acme)]).strip()
        whole = self._ask(self.keys.acme, chat_body(QUESTION)).text.strip()
        _expect(streamed == whole, "the stream has the same text as the whole answer", f"{streamed!r} and {whole!r}")
        return f"streamed: {streamed}"

    def tool_call(self) -> str:
        body = chat_body(
            "What is the weather in Paris?", tools=[WEATHER], tool_choice="required", parallel_tool_calls=False
        )
        choice = self._ask(self.keys.acme, body).body["choices"][0]
        (call,) = choice["message"]["tool_calls"]
        arguments = json.loads(call["function"]["arguments"])
        _expect(list(arguments) == ["city"] and choice["finish_reason"] == "tool_calls", "one city", str(choice))
        return f"{call['function']['name']}({call['function']['arguments']})"

    def personal_data(self) -> str:
        body = chat_body(PERSONAL, guided_choice=[LETTER])  # so small a model does not copy every placeholder unaided
        reply = self._ask(self.keys.acme, body, {"x-domicile-debug": "upstream"})
        upstream = reply.body["domicile"]["upstream_request"]
        saw = upstream["messages"][-1]["content"]
        _expect(MAIL not in str(upstream) and "3704" not in str(upstream), "neither mail nor IBAN left", str(upstream))
        placeholders = re.findall(r"<[A-Z]+_\d+_\w+>", saw)
        _expect(len(placeholders) == 2, "two placeholders in their place", saw)
        _expect(not any(p in reply.text for p in placeholders), "no placeholder in the answer", reply.text)
        _expect(MAIL in reply.text and IBAN in reply.text, "mail and IBAN come back restored", reply.text)
        return f"the model saw: {saw.splitlines()[-1]}\nthe answer was: {reply.text}"

    def refusal(self) -> str:
        reply = self._ask(self.keys.patients, chat_body(QUESTION), expect=403)
        rules = {reason["rule"] for reason in reply.body["error"]["reasons"]}
        _expect("residency.operator.ultimate_parent" in rules, "the ultimate parent is a reason", str(sorted(rules)))
        return str(reply.body["error"]["message"])

    def other_project(self) -> str:
        reply = self._ask(self.keys.globex, chat_body(QUESTION))
        _expect(reply.headers["x-domicile-region"] == "us-east", "it ran in us-east", str(dict(reply.headers)))
        return f"region {reply.headers['x-domicile-region']}, {reply.headers['x-domicile-decision']}"

    def wrong_key(self) -> str:
        reply = self._ask(
            self.keys.acme[:-1] + ("0" if self.keys.acme[-1] != "0" else "1"), chat_body("hi"), expect=401
        )
        return str(reply.body["error"]["message"])

    def ready(self) -> str:
        report = self._call("GET", self.base.removesuffix("/v1") + "/readyz").body
        _expect(report["ready"] and len(report["backends"]) == 2, "both engines answer", str(report))
        return ", ".join([*report["parts"], *report["backends"]])

    def receipt(self) -> str:
        receipt = self._ask(self.keys.acme, chat_body(QUESTION)).headers["x-domicile-receipt"]
        return _domicile("audit", "receipt", "verify", receipt, "--data", str(self.data))

    def audit_verify(self) -> str:
        return _domicile("audit", "verify", "--data", str(self.data))

    def _ask(
        self, key: str, body: dict[str, object], headers: Mapping[str, str] | None = None, *, expect: int = 200
    ) -> Reply:
        sent = {"authorization": f"Bearer {key}", "content-type": "application/json", **(headers or {})}
        reply = self._call("POST", f"{self.base}/chat/completions", json.dumps(body).encode(), sent)
        _expect(reply.status == expect, f"status {expect}", f"{reply.status}: {json.dumps(reply.body)[:400]}")
        return reply

    def _call(
        self, method: str, url: str, content: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Reply:
        """Raises CheckFailed where the gateway does not answer."""
        try:
            answer = GATEWAY.request(method, url, content=content, headers=headers)
        except ExternalUnavailable as error:
            raise CheckFailed(str(error)) from error
        return Reply(answer.status, answer.headers, json.loads(answer.content))


def _expect(holds: bool, wanted: str, came: str) -> None:
    if not holds:
        raise CheckFailed(f"expected: {wanted}; came: {came}")


def _run(command: str | list[str]) -> str:
    done = subprocess.run(  # noqa: S603
        command, shell=isinstance(command, str), capture_output=True, text=True, timeout=TIMEOUT_S
    )
    if done.returncode:
        raise CheckFailed(
            f"status {done.returncode}: {(done.stderr or done.stdout).strip()[-400:]}; read the message above"
        )
    return done.stdout


def _domicile(*arguments: str) -> str:
    return _run([sys.executable, "-m", "gateway", *arguments]).strip()
