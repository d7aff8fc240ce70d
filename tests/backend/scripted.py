"""A backend's HTTP face before an engine that says what it is told to: for answers that no tiny model would give."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import httpx
import openai
from tokenizers import AddedToken

from backend.chat.conversation import ChatModel
from backend.engine.core.progress import Finish, Progress, Stats
from backend.engine.loaded_adapter import LoadedAdapter
from backend.models.checkpoints import tokenizer
from backend.models.checkpoints.tokenizer import TextModel
from backend.process.engine_client import Call
from backend.process.gpu_meter import GpuMeter
from backend.process.messages import AddSequence, Ready
from backend.server.app import GenerationApi
from backend.server.base_api import Identity
from tests.backend.tiny import tiny_tokenizer

MODEL = "scripted"
HEADER = "{% for m in messages %}<|im_start|>{{ m.role }}\n"
BODY = (
    "{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}'
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
)
TOOLS = "{% if tools %}<|im_start|>system\n{% for t in tools %}{{ t | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
TEMPLATES = {
    "plain": "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    "hermes": f"{TOOLS}{HEADER}{BODY}{{% endif %}}",
    "qwen3": f"{TOOLS}{HEADER}{BODY}"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}",
    "r1": f"{HEADER}{BODY}<think>\n{{% endif %}}",
    "llama3": "{{ bos_token }}" + TOOLS + HEADER + "{{ m.content }}<|im_end|>\n{% endfor %}<|python_tag|> is yours"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    "harmony": "{% if tools %}<|start|>developer<|message|>{{ tools | tojson }}<|end|>{% endif %}"
    "{% for m in messages %}<|start|>{{ m.role }}<|channel|>final<|message|>{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}",
    "mistral": "{{ bos_token }}{% if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}"
    "{% for m in messages %}[INST]{{ m.content }}[/INST]{% endfor %}",
}
CONTROLS = ["<s>", "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"]
CONTROLS += ["<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|constrain|>"]
ADDED = ["<think>", "</think>", "<tool_call>", "</tool_call>"]


def text_model(folder: Path, template: str) -> TextModel:
    """Of a checkpoint's folder, with the control tokens of every format in its vocabulary."""
    made = tiny_tokenizer()
    made.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in CONTROLS])
    made.add_tokens([AddedToken(text, special=False, normalized=False) for text in ADDED])
    made.save(str(folder / "tokenizer.json"))
    settings = {"chat_template": TEMPLATES[template], "eos_token": "<|im_end|>", "bos_token": "<s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return tokenizer.from_folder(folder)


class Forgets:
    """Takes word that sequences are to be aborted: what is scripted has been said already."""

    def __call__(self, ids: list[int]) -> None:
        """Nothing is left to do."""

    abort = __call__


class ScriptedEngine:
    """Stands in for `EngineClient`: every choice is made of the same tokens, one an event."""

    def __init__(self, model: TextModel) -> None:
        self.model = model
        self.tokens: list[int] = []
        self.finish = Finish.STOP
        self.started: float | None = None
        self.asked: list[AddSequence] = []
        self.alive = True
        self.adapters: list[LoadedAdapter] = []
        self.dead = self.leaving = False
        self.stats = Stats(*[0] * len(Stats.__struct_fields__))
        self.ready = Ready(max_model_len=4096, vocab_size=model.vocab_size, stats=self.stats)

    def says(self, text: str, finish: Finish = Finish.STOP) -> None:
        """Control tokens by their spelling."""
        self.tokens = self.model.tokenizer.encode(text, add_special_tokens=False).ids
        self.finish = finish

    def submit(self, sequences: Sequence[AddSequence]) -> Call:
        self.asked = list(sequences)
        call = Call(cast("Any", Forgets()), range(len(sequences)))
        call.at_once = 1  # each token as if a step of its own had brought it
        end = [min(self.model.eos_ids)] if self.finish is Finish.STOP else []
        tokens = [*self.tokens, *end]
        for at, token in enumerate(tokens):
            for id in range(len(sequences)):
                call.deliver(
                    Progress(id, token, self.finish if at == len(tokens) - 1 else None, 0, started=self.started)
                )
        return call

    @property
    def prompt(self) -> str:
        """What the last request was turned into, control tokens by their spelling."""
        return str(self.model.tokenizer.decode(self.asked[0].prompt, skip_special_tokens=False))


class Scripted:
    def __init__(self, folder: Path, template: str, meter: GpuMeter | None = None, **parsers: str) -> None:
        model = text_model(folder, template)
        self.engine = ScriptedEngine(model)
        self.api = GenerationApi(self.engine, model, MODEL, Identity(), ChatModel(model, **parsers), meter)  # type: ignore[arg-type]
        self.http = httpx.AsyncClient(transport=httpx.ASGITransport(app=self.api.app()), base_url="http://backend")
        self.openai = openai.AsyncOpenAI(
            api_key="-", base_url="http://backend/v1", http_client=self.http, max_retries=0
        )

    async def chat(self, **body: Any) -> dict[str, Any]:
        """The one choice's message, and its reason to end under ``finish_reason``."""
        answer = await self.http.post("/v1/chat/completions", json=request(**body))
        assert answer.status_code == 200, answer.text
        choice = answer.json()["choices"][0]
        return {**choice["message"], "finish_reason": choice["finish_reason"]}

    async def stream(self, **body: Any) -> dict[str, Any]:
        """The same, put together from a stream as a client would."""
        message: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": []}
        answer = await self.http.post("/v1/chat/completions", json=request(stream=True, **body))
        assert answer.status_code == 200, answer.text
        for delta, reason in deltas(answer.text):
            for field in ("content", "reasoning_content"):
                message[field] += delta.get(field) or ""
            for call in delta.get("tool_calls") or []:
                if call.get("id"):
                    assert call["index"] == len(message["tool_calls"])
                    message["tool_calls"].append({"id": call["id"], "type": call["type"], "function": call["function"]})
                else:
                    message["tool_calls"][call["index"]]["function"]["arguments"] += call["function"]["arguments"]
            if reason:
                message["finish_reason"] = reason
        return message


def request(**body: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": "the sea"}], **body}


def deltas(events: str) -> Iterator[tuple[dict[str, Any], str | None]]:
    assert events.endswith("data: [DONE]\n\n")
    for event in events.split("\n\n")[:-2]:
        for choice in json.loads(event.removeprefix("data: "))["choices"]:
            yield choice["delta"], choice["finish_reason"]


@contextmanager
def refused(answer: httpx.Response, param: str, status: int = 400) -> Iterator[str]:
    """Checks that it was, and gives the message."""
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error["param"] == param
    yield error["message"]
