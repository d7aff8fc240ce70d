"""Whether a caller's grammar may reach the engine: decided by `grammar_sandbox`, cached by its digest."""

import asyncio
import os
import subprocess
import sys
from collections import OrderedDict
from hashlib import sha256

import msgspec

from backend.engine.core.grammar import MAX_GRAMMAR_BYTES, GrammarTooComplex
from backend.errors import EngineDead, InvalidRequest
from backend.models.checkpoints.tokenizer import TextModel
from backend.process.grammar_sandbox import LENGTH, TOO_COMPLEX, Question, Verdict, Vocabulary

KEPT = 4096  # verdicts
ANSWER_S = 60.0  # of a process that may be starting; each question has its own bound there


class GrammarCheck:
    """Compiles each grammar once in a process of its own, which is started with the first.

    vocab_size: of the model, which may have rows behind the tokenizer's last token.
    """

    def __init__(self, text_model: TextModel, vocab_size: int) -> None:
        self._text_model = text_model
        self._vocab_size = vocab_size
        self._verdicts: OrderedDict[bytes, Verdict] = OrderedDict()
        self._process: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()

    async def size(self, grammar: str) -> int:
        """Bytes that it keeps once compiled.

        Raises GrammarTooComplex if that is too much or takes too long, InvalidRequest for an invalid grammar or one
        that no text matches, EngineDead if the process cannot be started.
        """
        if len(grammar.encode()) > MAX_GRAMMAR_BYTES:
            raise GrammarTooComplex(f"the grammar is longer than {MAX_GRAMMAR_BYTES} bytes; send a shorter one")
        digest = sha256(grammar.encode()).digest()
        verdict = self._verdicts.get(digest)
        if verdict is None:
            # Shielded: a caller who leaves would otherwise leave half a frame behind.
            verdict = await asyncio.shield(asyncio.ensure_future(self._checked(digest, grammar)))
        self._verdicts.move_to_end(digest)
        if verdict.code:
            raise (GrammarTooComplex if verdict.code == TOO_COMPLEX else InvalidRequest)(verdict.message)
        return verdict.size

    async def _checked(self, digest: bytes, grammar: str) -> Verdict:
        async with self._turn:
            if digest not in self._verdicts:
                self._verdicts[digest] = await self._ask(grammar)
                while len(self._verdicts) > KEPT:
                    self._verdicts.popitem(last=False)
            return self._verdicts[digest]

    async def close(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            process.kill()
            await process.wait()

    async def _ask(self, grammar: str) -> Verdict:
        for _ in range(2):  # a process that was ended from outside is replaced once
            try:
                process = self._process or await self._start()
                return await asyncio.wait_for(_answer(process, Question(grammar)), ANSWER_S)
            except (OSError, EOFError, TimeoutError):
                await self.close()
        raise EngineDead(
            "the process that checks grammars cannot be started; free memory or processes on this host, and try again"
        )

    async def _start(self) -> asyncio.subprocess.Process:
        model = self._text_model
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "backend.process.grammar_sandbox",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "TOKENIZERS_PARALLELISM": "false"},
        )
        self._process = process
        _write(
            process,
            Vocabulary(
                model.tokenizer.to_str(), model.token_bytes, sorted(model.eos_ids), model.bos_id, self._vocab_size
            ),
        )
        return process


def _write(process: asyncio.subprocess.Process, message: msgspec.Struct) -> None:
    assert process.stdin is not None  # noqa: S101 -- it is a pipe
    body = msgspec.msgpack.encode(message)
    process.stdin.write(LENGTH.pack(len(body)) + body)


async def _answer(process: asyncio.subprocess.Process, question: Question) -> Verdict:
    assert process.stdin is not None and process.stdout is not None  # noqa: S101 -- they are pipes
    _write(process, question)
    await process.stdin.drain()
    (length,) = LENGTH.unpack(await process.stdout.readexactly(LENGTH.size))
    return msgspec.msgpack.decode(await process.stdout.readexactly(length), type=Verdict)
