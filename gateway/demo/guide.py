"""What the demonstration shows to a newcomer: the address, the keys, and commands to paste."""

import json
import shlex
import sys
from pathlib import Path

from rich.console import Console

from gateway.demo.scene import MODEL_NAME, Keys

QUESTION = "What is the capital of France?"
LETTER = "Please write to anna.schmidt@example.org and transfer to DE89 3704 0044 0532 0130 00."
PERSONAL = f"Repeat the following line exactly, with every character:\n{LETTER}"


def chat_body(content: str, **more: object) -> dict[str, object]:
    messages = [{"role": "user", "content": content}]
    return {"model": MODEL_NAME, "messages": messages, "temperature": 0, "max_tokens": 64, **more}


def show(console: Console, base: str, keys: Keys, data: Path) -> None:
    console.print(f"\n[bold]base URL[/bold]  {base}\n")
    for project, backend, key in (
        ("acme / support", "answered in eu-fr-par by a French-owned operator", keys.acme),
        ("globex / website", "answered in us-east by a US-owned operator", keys.globex),
        ("globex / patients", "refused: its policy asks for EU ownership", keys.patients),
    ):
        console.print(f"[bold]{project:18}[/bold] {backend}\n  {key}", soft_wrap=True)
    for title, command in commands(base, keys, data):
        console.print(f"\n[bold]{title}[/bold]", soft_wrap=True)
        console.print(command, markup=False, soft_wrap=True)
    console.print("\nCtrl-C stops everything.")


def commands(base: str, keys: Keys, data: Path) -> list[tuple[str, str]]:
    python = shlex.quote(sys.executable)
    folder = shlex.quote(str(data.absolute()))
    domicile = shlex.quote(str(Path(sys.executable).with_name("domicile")))
    return [
        ("An answer", curl(base, keys.acme, chat_body(QUESTION))),
        ("The same with OpenAI's Python SDK, streamed", f"{python} - <<'END'\n{sdk_program(base, keys.acme)}END"),
        (
            "Personal data reaches the model as placeholders and comes back restored (the header shows what it saw)",
            curl(base, keys.acme, chat_body(PERSONAL), "x-domicile-debug: upstream"),
        ),
        (
            "Refused: this project's policy wants EU ownership, and the only backend is US-owned",
            curl(base, keys.patients, chat_body(QUESTION)),
        ),
        (
            "The record, verified without the gateway",
            f"{domicile} audit verify --data {folder}",
        ),
    ]


def curl(base: str, key: str, body: dict[str, object], *headers: str) -> str:
    lines = [f"curl -s {base}/chat/completions"]
    for header in (f"Authorization: Bearer {key}", "Content-Type: application/json", *headers):
        lines.append(f"  -H {shlex.quote(header)}")
    lines.append(f"  -d {shlex.quote(json.dumps(body))}")
    return " \\\n".join(lines)


def sdk_program(base: str, key: str) -> str:
    return f"""\
from openai import OpenAI

client = OpenAI(base_url="{base}", api_key="{key}")
stream = client.chat.completions.create(
    model="{MODEL_NAME}",
    messages=[{{"role": "user", "content": "{QUESTION}"}}],
    temperature=0,
    max_tokens=64,
    stream=True,
)
for chunk in stream:
    print(chunk.choices[0].delta.content or "", end="", flush=True)
print()
"""
