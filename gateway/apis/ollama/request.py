"""Bodies of Ollama's ``/api/chat``, ``/api/generate`` and ``/api/embed`` as bodies of chats and embeddings.

Source: docs/api.md of Ollama. Streaming is the default there.
"""

from datetime import UTC, datetime
from typing import Any, Final

from gateway.api_format import Place
from gateway.apis.body_fields import INVALID_TYPE, MISSING, UNSUPPORTED, Fields, refused
from gateway.apis.chat_messages import ChatMessages
from gateway.apis.ollama.lines import Form
from gateway.apis.ollama.translation import EmbedTranslation, OllamaTranslation
from gateway.openai.finite_json import NotFinite, write

NOT_OFFERED: Final = {
    "context": "send the conversation to /api/chat",
    "logprobs": "use /v1/chat/completions",
    "max_tokens": "use options.num_predict",
    "raw": "use /v1/completions",
    "suffix": "use /v1/completions",
    "template": "leave it out; the model's own template is used",
    "top_logprobs": "use /v1/chat/completions",
}
"""Members that are not offered, with what to use instead."""
_SAMPLING: Final = {
    "frequency_penalty": "frequency_penalty",
    "min_p": "min_p",
    "presence_penalty": "presence_penalty",
    "repeat_penalty": "repetition_penalty",
    "seed": "seed",
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
}
_NEUTRAL: Final = {"mirostat": 0, "tfs_z": 1, "typical_p": 1}
"""Options of samplers that are not offered, with the value that switches each off."""
_OF_A_PROCESS: Final = (
    "embedding_only", "f16_kv", "logits_all", "low_vram", "main_gpu", "mirostat_eta", "mirostat_tau", "num_batch",
    "num_ctx", "num_gpu", "num_keep", "num_thread", "numa", "penalize_newline", "repeat_last_n", "use_mlock",
    "use_mmap", "vocab_only",
)  # fmt: skip
"""Options of Ollama's own process, which are numbers and flags and have no effect here."""
_FIRST_BYTES: Final = {"/9j/": "jpeg", "R0lG": "gif", "UklG": "webp"}
"""The beginning of images in base64, by type; PNG is taken for any other."""


def chatted(body: Any) -> tuple[dict[str, Any], OllamaTranslation]:
    """The chat body of a ``/api/chat`` body, and how the call is answered. Raises InvalidRequest."""
    with Fields(body, hints=NOT_OFFERED) as fields:
        made, places = _begun(fields)
        chat = _Conversation()
        messages = fields.items("messages")
        if not messages:
            raise refused(("messages",), "it is missing or empty", "send at least one", MISSING)
        for position, message in enumerate(messages):
            with Fields(message, ("messages", position)) as one:
                chat.read(one)
        made["messages"] = chat.messages
        places.update(chat.places)
        _read_tools(fields, made, places)
        shows = _read_common(fields, made, places)
    return made, OllamaTranslation(Form(made["model"], _now(), of_chat=True, shows_thinking=shows), places)


def generated(body: Any) -> tuple[dict[str, Any], OllamaTranslation]:
    """The same of a ``/api/generate`` body, whose prompt is one message."""
    with Fields(body, hints=NOT_OFFERED) as fields:
        made, places = _begun(fields)
        chat = ChatMessages()
        if system := fields.text("system"):
            chat.add({"role": "system", "content": system}, ("system",), content=("system",))
        prompt = fields.text("prompt")
        if not prompt:
            raise refused(("prompt",), "it is missing or empty; models are loaded by themselves", "add it", MISSING)
        _add_said(chat, "user", prompt, fields.items("images"), ("prompt",), fields.at("images"))
        made["messages"] = chat.messages
        places.update(chat.places)
        fields.only("raw", allowed=False, fix=NOT_OFFERED["raw"])
        shows = _read_common(fields, made, places)
    return made, OllamaTranslation(Form(made["model"], _now(), of_chat=False, shows_thinking=shows), places)


def embedded(body: Any) -> tuple[dict[str, Any], EmbedTranslation]:
    """The body for embeddings of a ``/api/embed`` body. Raises InvalidRequest."""
    with Fields(body, hints=NOT_OFFERED) as fields:
        made: dict[str, Any] = {"model": fields.required_text("model")}
        if (texts := fields.any("input")) is None:
            raise refused(("input",), "it is missing", "add it", MISSING)
        made["input"] = texts
        if (dimensions := fields.any("dimensions")) is not None:
            made["dimensions"] = dimensions
        if fields.flag("truncate"):
            made["truncate_prompt_tokens"] = -1
        _read_keep_alive(fields)
        if (options := fields.fields("options")) is not None:
            with options:
                _skip_process_options(options)
    return made, EmbedTranslation(made["model"])


def _now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


def _begun(fields: Fields) -> tuple[dict[str, Any], dict[Place, Place]]:
    stream = fields.flag("stream")
    made: dict[str, Any] = {"model": fields.required_text("model")}
    if stream is not False:
        made["stream"] = True
    return made, {(chats,): ("options", name) for name, chats in _SAMPLING.items()}


def _read_common(fields: Fields, made: dict[str, Any], places: dict[Place, Place]) -> bool:
    """Whether the answer shows thoughts."""
    if (options := fields.fields("options")) is not None:
        with options:
            _read_options(options, made)
    places[("max_tokens",)], places[("stop",)] = ("options", "num_predict"), ("options", "stop")
    form = fields.any("format")
    if form == "json":
        made["response_format"] = {"type": "json_object"}
    elif isinstance(form, dict) and form:
        made["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "schema": form}}
        places["response_format", "json_schema", "schema"] = places[("response_format",)] = ("format",)
    elif form not in (None, "", {}):
        fields.wrong("format", "it is neither json nor a schema", "send json or a JSON schema")
    _read_keep_alive(fields)
    fields.flag("truncate")
    fields.flag("shift")
    fields.only("logprobs", allowed=False, fix=NOT_OFFERED["logprobs"])
    think = fields.any("think")
    places[("reasoning_effort",)] = ("think",)
    if think is False:
        made["reasoning_effort"] = "none"
    elif think in ("low", "medium", "high", "max"):
        made["reasoning_effort"] = think
    elif think not in (None, True):
        fields.wrong("think", "this value is not offered", "send true, false, low, medium, high or max")
    return think is not False


def _read_options(options: Fields, made: dict[str, Any]) -> None:
    for name, chats in _SAMPLING.items():
        if (value := options.any(name)) is not None:
            made[chats] = value
    if (stop := options.any("stop")) not in (None, []):
        made["stop"] = stop
    most = options.any("num_predict")
    if most is not None and type(most) is not int:
        options.wrong("num_predict", "it is no whole number", "send one", INVALID_TYPE)
    if most is not None and most > 0:  # -1 and -2: as many as there is room for
        made["max_tokens"] = most
    for name, neutral in _NEUTRAL.items():
        if options.any(name) not in (None, neutral):
            options.wrong(name, "this sampler is not offered", "leave it out", UNSUPPORTED)
    _skip_process_options(options)


def _skip_process_options(options: Fields) -> None:
    for name in _OF_A_PROCESS:
        if not isinstance(options.any(name), int | float | None):
            options.wrong(name, "it is neither a number nor a flag", "leave it out", INVALID_TYPE)


def _read_keep_alive(fields: Fields) -> None:
    """How long a model stays loaded: a deployment says that here."""
    value = fields.any("keep_alive")
    if isinstance(value, str):
        Fields({"keep_alive": value}).identifier("keep_alive")
    elif not isinstance(value, int | float | None):
        fields.wrong("keep_alive", "it is no duration", "leave it out", INVALID_TYPE)


def _read_tools(fields: Fields, made: dict[str, Any], places: dict[Place, Place]) -> None:
    tools: list[dict[str, Any]] = []
    for tool in fields.each("tools"):
        tool.one_of("type", ("function",))
        if (function := tool.fields("function")) is None:
            tool.wrong("function", "it is missing", "add it", MISSING)
        with function:
            told: dict[str, Any] = {"name": function.required_text("name")}
            if (description := function.text("description")) is not None:
                told["description"] = description
            if (parameters := function.object("parameters")) is not None:
                told["parameters"] = parameters
        tools.append({"type": "function", "function": told})
    if tools:
        made["tools"] = tools


def _add_said(chat: ChatMessages, role: str, text: str | None, images: list[Any], at: Place, images_at: Place) -> None:
    """A message of a text and the images that come with it."""
    if not images:
        chat.add({"role": role, "content": text or ""}, at, content=at)
        return
    parts: list[dict[str, Any]] = [{"type": "text", "text": text or ""}]
    for number, image in enumerate(images):
        if not isinstance(image, str):
            raise refused((*images_at, number), "it is no text", "send the image in base64", INVALID_TYPE)
        kind = _FIRST_BYTES.get(image[:4], "png")
        parts.append({"type": "image_url", "image_url": {"url": f"data:image/{kind};base64,{image}"}})
    chat.add({"role": role, "content": parts}, at, content=at)
    here: Place = ("messages", len(chat.messages) - 1, "content")
    chat.places[*here, 0] = at
    for number in range(len(images)):
        chat.places[*here, number + 1] = (*images_at, number)


class _Conversation(ChatMessages):
    """Chat messages of Ollama's, whose calls may have no ids: results are matched by order and by name."""

    def __init__(self) -> None:
        super().__init__()
        self._unanswered: list[tuple[str, str]] = []
        self._called = 0

    def read(self, one: Fields) -> None:
        role = one.one_of("role", ("system", "user", "assistant", "tool"))
        if role is None:
            one.wrong("role", "it is missing", "send system, user, assistant or tool", MISSING)
        content, images = one.text("content"), one.items("images")
        if role == "tool":
            self._read_result(one, content or "")
        elif role == "assistant":
            self.end_turn()
            if images:
                one.wrong("images", "an assistant's message has none", "leave them out", UNSUPPORTED)
            self._read_answer(one, content)
        else:
            _add_said(self, role, content, images, one.at("content"), one.at("images"))

    def _read_answer(self, one: Fields, content: str | None) -> None:
        if thought := one.text("thinking"):
            self.think(thought, one.at("thinking"))
        self._unanswered = []
        calls = one.items("tool_calls")
        if content or not calls:
            self.say(content or "", one.at("content"))
        for number, call in enumerate(calls):
            with Fields(call, one.at("tool_calls", number)) as told:
                self._read_call(told)

    def _read_call(self, told: Fields) -> None:
        identifier = told.text("id") or f"call_{self._called}"
        self._called += 1
        told.one_of("type", ("function",))
        if (function := told.fields("function")) is None:
            told.wrong("function", "it is missing", "add it", MISSING)
        with function:
            name = function.required_text("name")
            function.whole_number("index")
            asked = function.object("arguments")
            at = function.at("arguments")
        try:
            arguments = write(asked or {}).decode()
        except NotFinite:
            raise refused(at, "a number is too large", "JSON has no infinity; send a smaller one") from None
        self.call(identifier, name, arguments, told.place, {"arguments": at, "name": (*function.place, "name")})
        self._unanswered.append((identifier, name))

    def _read_result(self, one: Fields, content: str) -> None:
        asked, name = one.text("tool_call_id"), one.text("tool_name")
        found = next(
            (each for each in self._unanswered if asked in (None, each[0]) and name in (None, each[1])), None
        ) or next((each for each in self._unanswered if asked is None), None)
        if found is None:
            field = "tool_call_id" if asked is not None else "role"
            one.wrong(field, "no call before it has this result", "send the message of the assistant that calls")
        self._unanswered.remove(found)
        message = {"role": "tool", "tool_call_id": found[0], "content": content}
        self.add(message, one.place, tool_call_id=one.at("tool_name" if asked is None else "tool_call_id"))
