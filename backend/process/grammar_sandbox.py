"""Sandbox process that compiles a client's grammar and reports its cost, before the engine compiles it.

llguidance bounds the states of a lexer, and not the size of what a pattern expands to: ``(g{1000}){1000}`` has 15
characters, takes seconds and keeps 150 MB. So each grammar is compiled in a child of this process first, which the
kernel ends when it has used CPU_S of a core, and which cannot allocate more than HEADROOM_BYTES. The child is forked
from a process that has the vocabulary prepared.

Frames on stdin and stdout are msgpack behind a length of four bytes: `Vocabulary` first, then one `Question` after the
other, each answered by a `Verdict`.
"""

import os
import resource
import select
import signal
import struct
import sys
from typing import IO, TypeVar

import msgspec
from llguidance import LLTokenizer
from tokenizers import Tokenizer

from backend.engine.core.grammar import GrammarTooComplex, compile_grammar, prepared
from backend.errors import InvalidRequest
from backend.models.checkpoints.tokenizer import TextModel

CPU_S = 0.1
WALL_S = 5.0  # of a machine that is busy otherwise
KEPT_BYTES = 20 << 20
HEADROOM_BYTES = 256 << 20
LENGTH = struct.Struct("<I")
TOO_COMPLEX = GrammarTooComplex.code
M = TypeVar("M", bound=msgspec.Struct)


class Vocabulary(msgspec.Struct, frozen=True):
    """What a grammar is compiled for. tokenizer: its JSON."""

    tokenizer: str
    token_bytes: list[bytes]
    eos_ids: list[int]
    bos_id: int | None
    vocab_size: int


class Question(msgspec.Struct, frozen=True):
    grammar: str


class Verdict(msgspec.Struct, frozen=True):
    """size: bytes that the compiled grammar keeps. code: "" for one that is good; message: why it is not."""

    size: int = 0
    code: str = ""
    message: str = ""


def main() -> None:
    vocabulary = _receive(sys.stdin.buffer, Vocabulary)
    if vocabulary is None:
        return
    text = TextModel(
        Tokenizer.from_str(vocabulary.tokenizer),
        vocabulary.token_bytes,
        frozenset(vocabulary.eos_ids),
        vocabulary.bos_id,
        None,
    )
    tokenizer = prepared(text, vocabulary.vocab_size)
    while (question := _receive(sys.stdin.buffer, Question)) is not None:
        send(sys.stdout.buffer, _checked(tokenizer, question.grammar))


def _checked(tokenizer: LLTokenizer, grammar: str) -> Verdict:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            _limit()
            os.write(writing, msgspec.msgpack.encode(_verdict(tokenizer, grammar)))
        finally:
            os._exit(0)
    os.close(writing)
    try:
        said = b""
        while select.select([reading], [], [], WALL_S)[0] and (piece := os.read(reading, 1 << 16)):
            said += piece
    finally:
        os.close(reading)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    if not said:
        return Verdict(code=TOO_COMPLEX, message="the grammar is too complex; use fewer or smaller repetitions")
    return msgspec.msgpack.decode(said, type=Verdict)


def _limit() -> None:
    """Set the limits at which the kernel ends this process."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # where a failed allocation is reported
    most = _memory("VmSize") + HEADROOM_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, CPU_S)


def _verdict(tokenizer: LLTokenizer, grammar: str) -> Verdict:
    before = _memory("VmRSS")
    try:
        compiled = compile_grammar(tokenizer, grammar)
    except InvalidRequest as refused:
        return Verdict(code=refused.code or "invalid_request", message=refused.message)
    size = max(0, _memory("VmRSS") - before)
    del compiled
    if size > KEPT_BYTES:
        return Verdict(code=TOO_COMPLEX, message="the grammar is too large; use fewer or smaller repetitions")
    return Verdict(size=size)


def _memory(name: str) -> int:
    """Bytes, of a line of /proc/self/status (Linux, proc(5))."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith(f"{name}:"))


def send(stream: IO[bytes], message: msgspec.Struct) -> None:
    body = msgspec.msgpack.encode(message)
    stream.write(LENGTH.pack(len(body)) + body)
    stream.flush()


def _receive(stream: IO[bytes], kind: type[M]) -> M | None:
    head = stream.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack(head)
    return msgspec.msgpack.decode(stream.read(length), type=kind)


if __name__ == "__main__":
    main()
