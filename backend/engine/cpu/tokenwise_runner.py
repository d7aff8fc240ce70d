"""Batch-invariant mode on the CPU: every token is computed alone.

A matrix product of a CPU library gives a row other last bits in another place or in other company, and which rows it
treats alike depends on the processor (OpenBLAS and oneDNN choose their kernels by it). So the model is run for one
token at a time, whose logits then depend on its own sequence only, on any processor. A prompt is computed at the speed
of decoding.
"""

import torch
from torch import Tensor

from backend.engine.cache.attention import HeadwiseAttention, Prefill, TableStep
from backend.engine.core.progress import TokenLogprobs
from backend.engine.core.sequence import Sequence
from backend.engine.core.speculation import first_rows
from backend.engine.cpu.logprobs import logprobs_of
from backend.engine.cpu.model_runner import Computed, ModelRunner, Run, packed
from backend.models.decoders.decoder import Begun
from backend.models.layer_groups import reached_from


class TokenwiseRunner(ModelRunner):
    """A `ModelRunner` whose tokens and log probabilities do not depend on batch, chunks, blocks, cache or guesses."""

    def _forward(self, runs: list[Run]) -> Computed:
        logits_by_run: list[Tensor] = []
        of_prompts: list[tuple[Sequence, int, list[TokenLogprobs]]] = []
        committed: list[list[bytes]] = [[] for _ in runs]
        self._first = first_rows((run.sequence.id, run.num_tokens) for run in runs)
        for run, rows in zip(runs, committed, strict=True):
            sequence, start, first_draw = run.sequence, run.sequence.num_computed, run.num_tokens - run.num_draws
            drawn: list[Tensor] = []
            reported: list[TokenLogprobs] = []
            for i in range(run.num_tokens):
                in_prompt = i in run.prompt_rows
                begun = self._token(run, start + i, wanted=i >= first_draw or in_prompt)
                logits = self.model.collect(begun)
                if i >= first_draw:
                    drawn.append(logits)
                    rows += packed(self.model.collect_states(begun)) if run.commits else []
                if in_prompt:
                    reported += logprobs_of(
                        logits, [sequence.tokens[start + i + 1]], [sequence.params.prompt_logprobs or 0]
                    )
            logits_by_run.append(torch.cat(drawn) if drawn else torch.empty(0, self.model.config.vocab_size))
            if reported:
                of_prompts.append((sequence, start + run.prompt_rows.start, reported))
        return logits_by_run, of_prompts, committed

    def _token(self, run: Run, position: int, *, wanted: bool) -> Begun:
        """Compute the token at `position`; of one row if its logits are wanted, else of none."""
        together = self.model.config.heads_of_part
        steps = [self._step_of_token(run.sequence, position, table) for table in range(len(self.windows))]
        attention = HeadwiseAttention(self.cache, steps, together)
        rows = torch.zeros(int(wanted), dtype=torch.int64)
        ids = torch.tensor([run.tokens[position]])
        if self.model.exposure is not None:
            self.model.exposure.begin = self._first[run.sequence.id] + position - run.sequence.num_computed
        self._adapt([run.sequence.adapter])
        return self.model.begin(ids, torch.tensor([position]), attention, rows)

    def _step_of_token(self, sequence: Sequence, position: int, table: int) -> TableStep:
        """As a chunk of one token, over exactly the keys that there are: a decode's are padded to whole blocks."""
        size = self.cache.block_size
        first = reached_from(self.windows[table], position, size)
        blocks = torch.tensor(sequence.block_tables[table][first : position // size + 1])
        slots = torch.tensor(self._slots(sequence, range(position, position + 1), table))
        return TableStep(slots, None, [Prefill(0, 1, position - first * size, blocks)])

    def _drawn(
        self, runs: list[Run], logits: list[Tensor], allowed: dict[int, Tensor]
    ) -> list[tuple[list[int | None], list[TokenLogprobs | None]]]:
        """One row at a time, as the logits: the softmax of a batch is another sum."""
        drawn = []
        for run, own in zip(runs, logits, strict=True):
            tokens: list[int | None] = []
            reported: list[TokenLogprobs | None] = []
            for i in range(run.num_draws):
                last = run.num_tokens - run.num_draws + i + 1
                part = Run(run.sequence, run.tokens, last, 1)
                rows = {id: bits[i : i + 1] for id, bits in allowed.items() if id == run.sequence.id}
                ((token,), (logprobs,)) = super()._drawn([part], [own[i : i + 1]], rows)[0]
                tokens.append(token)
                reported.append(logprobs)
            drawn.append((tokens, reported))
        return drawn
