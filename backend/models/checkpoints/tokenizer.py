"""Text to token ids and back, byte-exact.

Encoding is the `tokenizers` package's. Decoding is a table from id to bytes, so that a stream can be cut at any token:
bytes go through one incremental UTF-8 decoder (`Detokenizer`), which never sees text twice and never emits half a
character.
"""

import codecs
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from secrets import token_hex
from typing import Any

from tokenizers import Tokenizer

from backend.errors import CorruptCheckpoint, InvalidRequest, ModelNotFound, UnsupportedModel
from backend.models.checkpoints import gguf_tokenizer
from backend.models.checkpoints.chat_template import ChatTemplate, with_suffix
from backend.models.checkpoints.gguf import GGUFFile
from backend.models.checkpoints.safetensors import read_json, regular

MORE_TEMPLATES = "additional_chat_templates"  # transformers' folder of named ones


@dataclass(frozen=True)
class TextModel:
    """A model's text side: everything the HTTP process needs of a checkpoint.

    ``token_bytes[i]`` is what id i contributes to the text: b"" for control tokens. ``tool_template``: the one that the
    checkpoint keeps for conversations with tools, if that is another.
    """

    tokenizer: Tokenizer
    token_bytes: list[bytes]
    eos_ids: frozenset[int]
    bos_id: int | None
    chat_template: ChatTemplate | None
    tool_template: ChatTemplate | None = None

    @cached_property
    def vocab_size(self) -> int:
        return len(self.token_bytes)

    @cached_property
    def texts(self) -> dict[int, str]:
        """Texts of tokens whose bytes are whole characters, as far as streams have met them; of each `Detokenizer`."""
        return {}

    def encode_completion(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """A bare prompt: with the model's BOS where it has one, once even if the text spells it."""
        ids = encoded(self.tokenizer, text, add_special_tokens=add_special_tokens)
        if self.bos_id is not None and ids[:2] == [self.bos_id, self.bos_id]:
            return ids[1:]
        return ids

    def encode_words(self, text: str) -> list[int]:
        """Ordinary text inside an answer; what spells a control token is that token."""
        return encoded(self.tokenizer, text, add_special_tokens=False)

    @cached_property
    def most_bytes_of_a_token(self) -> int:
        """No token stands for a longer text."""
        return max(map(len, self.token_bytes), default=1) or 1

    def template_for(self, tools: Sequence[Mapping[str, Any]] | None) -> ChatTemplate:
        """The one that writes conversations with those tools. Raises InvalidRequest if there is none."""
        template = self.tool_template if tools and self.tool_template is not None else self.chat_template
        if template is None:
            raise InvalidRequest("this model has no chat template; use /v1/completions", param="messages")
        return template

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        add_generation_prompt: bool = True,
        continued: bool = False,
        options: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """A conversation, as the model's template writes it; the template writes its own BOS, so none is added.

        A control token that somebody spells inside a message, a tool or an option stays text: only the template opens
        and closes turns, so no message can pass itself off as the system's. ``continued``: the last message's content
        is where it ends. Raises InvalidRequest if there is no template, or it refuses.
        """
        template = self.template_for(tools)
        spelled: list[str] = []
        mark = f"x{token_hex(8)}x"  # cannot be guessed, and no template escapes it

        def hide(match: re.Match[str]) -> str:
            spelled.append(match[0])
            return f"{mark}{len(spelled) - 1}x"

        def as_text(value: Any) -> Any:
            return _map_strings(value, lambda s: self._controls.sub(hide, s))

        hidden = [as_text(m) for m in messages]
        end = f"y{token_hex(8)}y"
        if continued:
            hidden[-1] = {**hidden[-1], "content": with_suffix(hidden[-1]["content"], end)}
        rendered = template.render(
            hidden,
            None if tools is None else [as_text(tool) for tool in tools],
            add_generation_prompt=add_generation_prompt,
            options=as_text(options or {}),
        )
        if continued:
            rendered, shown, _ = rendered.rpartition(end)
            if not shown:
                raise InvalidRequest(
                    "the model's template does not show the last message; leave continue_final_message out",
                    param="messages",
                )
        ids: list[int] = []
        for at, piece in enumerate(re.split(f"{mark}(\\d+)x", rendered)):
            ids += self._controls_as_text[spelled[int(piece)]] if at % 2 else self.encode_words(piece)
        return ids

    @cached_property
    def _controls(self) -> re.Pattern[str]:
        """Any control token's spelling; never matches when there is none."""
        return re.compile("|".join(map(re.escape, sorted(self._controls_as_text, key=len, reverse=True))) or r"(?!)")

    @cached_property
    def _controls_as_text(self) -> dict[str, list[int]]:
        """What each control token's spelling is as ordinary text."""
        plain = Tokenizer.from_str(self.tokenizer.to_str())
        plain.encode_special_tokens = True
        added = self.tokenizer.get_added_tokens_decoder().values()
        return {t.content: plain.encode(t.content, add_special_tokens=False).ids for t in added if t.special}

    def showing(self, markers: Iterable[str]) -> "TextModel":
        """The same, but that these control tokens, where it has them, are text in what the model writes."""
        shown = list(self.token_bytes)
        for marker in markers:
            if (token := self.control_token(marker)) is not None:
                shown[token] = marker.encode()
        return replace(self, token_bytes=shown)

    @cached_property
    def outspoken(self) -> "TextModel":
        """The same, but that every control token is text."""
        return self.showing(self._controls_as_text)

    def control_token(self, spelling: str) -> int | None:
        """The id of a control token; None for what is ordinary text to this model."""
        token: int | None = self.tokenizer.token_to_id(spelling)
        return token if token is not None and not self.token_bytes[token] else None

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`; equal to the concatenation of any streaming of them."""
        detokenizer = Detokenizer(self.token_bytes, self.texts)
        return "".join(detokenizer.feed(i) for i in ids)


def _map_strings(value: Any, change: Callable[[str], str]) -> Any:
    """`value` with every string in it changed, keys as well."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(key): _map_strings(inner, change) for key, inner in value.items()}
    if isinstance(value, list):
        return [_map_strings(inner, change) for inner in value]
    return value


def encoded(tokenizer: Tokenizer, text: str, *, add_special_tokens: bool) -> list[int]:
    """Token ids. As a batch of one: `encode` holds the interpreter lock while it works, `encode_batch` does not."""
    ids: list[int] = tokenizer.encode_batch([text], add_special_tokens=add_special_tokens)[0].ids
    return ids


class Detokenizer:
    """Text of one token stream. Bytes that never become a character are dropped, not shown as U+FFFD."""

    def __init__(self, token_bytes: list[bytes], texts: dict[int, str] | None = None) -> None:
        """texts: `TextModel.texts`, which streams of the same tokens share: they are decoded once."""
        self._token_bytes = token_bytes
        self._texts = {} if texts is None else texts
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="ignore")
        self._inside = False  # a character has begun and not ended

    def feed(self, token: int) -> str:
        """What became readable with this token; "" while inside a character. Ids past the vocabulary (padded
        embedding rows) have no text."""
        if not self._inside and (known := self._texts.get(token)) is not None:
            return known
        if token >= len(self._token_bytes):
            return ""
        between = not self._inside
        text = self._utf8.decode(self._token_bytes[token])
        self._inside = bool(self._utf8.getstate()[0])
        if between and not self._inside:
            self._texts[token] = text
        return text


def from_gguf(file: GGUFFile) -> TextModel:
    """Tokenizer, special tokens and chat template from GGUF metadata.

    Raises UnsupportedModel for a tokenizer kind or pre-split that we do not reproduce exactly.
    """
    meta = file.metadata
    tokenizer, tokens = gguf_tokenizer.read(meta)
    bos = meta.get("tokenizer.ggml.bos_token_id")
    eos = [meta[k] for k in ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id") if k in meta]
    if bos is not None and meta.get("tokenizer.ggml.add_bos_token", gguf_tokenizer.is_sentencepiece(meta)):
        gguf_tokenizer.prepend_bos(tokenizer, tokens[bos], bos)
    template, tool_template = meta.get("tokenizer.chat_template"), meta.get("tokenizer.chat_template.tool_use")
    variables = {"bos_token": tokens[bos] if bos is not None else "", "eos_token": tokens[eos[0]] if eos else ""}
    return TextModel(
        tokenizer=tokenizer,
        token_bytes=token_bytes(tokenizer),
        eos_ids=frozenset(eos),
        bos_id=bos,
        chat_template=ChatTemplate(template, variables) if template else None,
        tool_template=ChatTemplate(tool_template, variables) if tool_template else None,
    )


def read_tokenizer(folder: Path) -> Tokenizer:
    """Raises ModelNotFound or CorruptCheckpoint."""
    path = regular(folder / "tokenizer.json")
    if not path.exists():
        raise ModelNotFound(f"no tokenizer.json in {folder}; download the whole checkpoint")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as broken:  # the Rust side raises a bare Exception
        raise CorruptCheckpoint(f"tokenizer.json: {broken}") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def from_folder(folder: Path) -> TextModel:
    """Tokenizer, special tokens and chat template of a Hugging Face folder."""
    tokenizer = read_tokenizer(folder)
    settings = _optional_json(folder / "tokenizer_config.json")
    generation = _optional_json(folder / "generation_config.json")
    config = _optional_json(folder / "config.json")

    named = {name: _token_text(settings.get(name)) for name in ("bos_token", "eos_token")}
    eos: set[int] = set()
    for source in (generation.get("eos_token_id"), config.get("eos_token_id")):
        eos.update([source] if isinstance(source, int) else source or [])
    ids = {name: tokenizer.token_to_id(text) if text else None for name, text in named.items()}
    if ids["eos_token"] is not None:
        eos.add(ids["eos_token"])
    variables = {name: text or "" for name, text in named.items()}
    templates = {name: ChatTemplate(source, variables) for name, source in _folder_templates(folder, settings).items()}
    return TextModel(
        tokenizer=tokenizer,
        token_bytes=token_bytes(tokenizer),
        eos_ids=frozenset(eos),
        bos_id=ids["bos_token"],
        chat_template=templates.get("default"),
        tool_template=templates.get("tool_use"),
    )


def _optional_json(path: Path) -> dict[str, Any]:
    return read_json(path) if path.exists() else {}


def _token_text(value: Any) -> str | None:
    """tokenizer_config.json writes a token as a string or as an object with its content."""
    return value.get("content") if isinstance(value, dict) else value


def _folder_templates(folder: Path, settings: dict[str, Any]) -> dict[str, str]:
    """By name, ``default`` first of all: in files of their own, or in tokenizer_config.json, one or several. Of two the
    one in a file of its own counts."""
    written = settings.get("chat_template")
    templates: dict[str, str] = {}
    if isinstance(written, str):
        templates["default"] = written
    elif isinstance(written, list):
        templates |= {entry["name"]: entry["template"] for entry in written}
    beside = _optional_json(folder / "chat_template.json").get("chat_template")  # of releases that read images
    if isinstance(beside, str):
        templates["default"] = beside
    for path in (*folder.glob(f"{MORE_TEMPLATES}/*.jinja"), folder / "chat_template.jinja"):
        if path.is_file():
            name = "default" if path.parent == folder else path.stem
            templates[name] = path.read_text(encoding="utf-8")
    return templates


def token_bytes(tokenizer: Tokenizer) -> list[bytes]:
    """For each id the bytes it stands for, b"" for special ones.

    Byte-level BPE (GPT-2's printable alphabet) and SentencePiece with byte fallback; anything else is refused, because
    guessing would garble text. SentencePiece's dropping of one leading space is not applied: it is a property of a
    whole text, not of a token.
    """
    decoder = json.loads(tokenizer.to_str())["decoder"] or {}
    kinds = {decoder.get("type"), *(d["type"] for d in decoder.get("decoders", ()))}
    if "ByteLevel" in kinds:
        plain = _byte_level_bytes
    elif "ByteFallback" in kinds:
        plain = _sentencepiece_bytes
    else:
        raise UnsupportedModel(f"tokenizer decoder {decoder.get('type')!r}; byte-level and byte-fallback are read")
    added = tokenizer.get_added_tokens_decoder()
    table = [b""] * tokenizer.get_vocab_size(with_added_tokens=True)
    for token, i in tokenizer.get_vocab(with_added_tokens=True).items():
        if i >= len(table):
            table.extend([b""] * (i + 1 - len(table)))
        if i in added:
            table[i] = b"" if added[i].special else added[i].content.encode()
        else:
            table[i] = plain(token)
    return table


def _byte_alphabet() -> dict[str, bytes]:
    """GPT-2's map of the 256 bytes to printable characters (Radford et al. 2019), inverted: character to byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [b for b in range(256) if b not in printable]
    return {chr(b): bytes([b]) for b in printable} | {chr(256 + i): bytes([b]) for i, b in enumerate(rest)}


_BYTES = _byte_alphabet()


def _byte_level_bytes(token: str) -> bytes:
    return b"".join(_BYTES.get(character) or character.encode() for character in token)


def _sentencepiece_bytes(token: str) -> bytes:
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        return bytes([int(token[3:5], 16)])
    return token.replace(gguf_tokenizer.SPACE_MARK, " ").encode()
