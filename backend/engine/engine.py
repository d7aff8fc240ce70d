"""The engine: add sequences, call `step` until there is nothing left.

A runner computes the steps. One that works ahead has the next step scheduled and launched while the last one runs, and
hands tokens out one step late; so a sequence that an end token ended has run once more, in vain.

Not thread-safe; its clock measures rates only. `backend.process.engine_process` drives it.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from backend.engine.adapters import AdapterPlaces, Adapters, LeadingPlaces
from backend.engine.apart.exports import Exports
from backend.engine.apart.imports import Imports, Room
from backend.engine.apart.statement import CacheLayout
from backend.engine.apart.windows import Windows
from backend.engine.cache.attention import KVCache
from backend.engine.cache.host_pages import HostPages as OwnHostPages
from backend.engine.cache.sleeper import HostSleeper, Sleeper
from backend.engine.core.block_manager import BlockManager
from backend.engine.core.grammar import GrammarMatcher
from backend.engine.core.host_tier import HostPages, HostTier
from backend.engine.core.progress import Finish, OnStage, Progress, Stats, TokenLogprobs
from backend.engine.core.restriction import Restriction
from backend.engine.core.runner import Launched, Runner
from backend.engine.core.sampling import SamplingParams
from backend.engine.core.scheduler import Scheduled, Scheduler
from backend.engine.core.sequence import Sequence, Status
from backend.engine.core.speculation import Benefit, Drafted, Drafter, HiddenStates, Speculation, agreed
from backend.engine.core.token_masks import Allowed, MaskedGrammars
from backend.engine.cpu.model_runner import ModelRunner
from backend.engine.cpu.tokenwise_runner import TokenwiseRunner
from backend.engine.drafting.ngram_drafter import NgramDrafter
from backend.engine.drafting.start import DraftModel, draft_model
from backend.engine.loaded_adapter import LoadedAdapter
from backend.engine.pacing import PromptPace, StepTimer
from backend.engine.parallel.computing import computing
from backend.engine.parallel.followers import Followers
from backend.engine.parallel.leader import LeadingHostPages, LeadingRunner, LeadingSleeper
from backend.engine.parallel.leading_pages import Division
from backend.engine_config import CacheSize, EngineConfig, groups_of
from backend.errors import Asleep, CannotScrub, CannotSleep, ContextLengthExceeded, InvalidRequest, Overloaded
from backend.models.checkpoints.checkpoint import Checkpoint
from backend.models.checkpoints.direct import OnProgress
from backend.models.decoders.decoder import Decoder
from backend.models.decoders.encoder import Encoder
from backend.parallel.group import SINGLE, SINGLE_ORDERED, ParallelGroup

GRAMMAR_WAIT_S = 0.02
LOADS_STEPS = 64  # after which loads of experts are read again: a trip to the device
SCRUB_BLOCKS = 512  # read back at a time: some milliseconds of a card
HOST_SCRUB_BYTES = 64 << 20  # the same of the host's memory
LOAD_WAIT_S = 0.0005  # between two looks at a load from the host that nothing can run without


@dataclass(frozen=True, slots=True)
class Team:
    """The ranks of a model that is divided among several: rank 0's group, and the others."""

    group: ParallelGroup
    followers: Followers


class Engine:
    def __init__(
        self,
        model: Decoder | Encoder,
        config: EngineConfig,
        cache: CacheSize,
        eos_ids: frozenset[int] = frozenset(),
        *,
        runner: Runner | None = None,
        drafter: Drafter | None = None,
        sleeper: Sleeper | None = None,
        reload: Callable[[OnProgress], Decoder] | None = None,
        grammars: MaskedGrammars | None = None,
        whole: bool = False,
        expert_loads: Callable[[], list[int]] = list,
        adapters: Adapters | None = None,
        draft: DraftModel | None = None,
        host: HostPages | None = None,
        exposed: Callable[[], HiddenStates | None] = lambda: None,
    ) -> None:
        """``runner``: of a cache of that size; by default the plain one, which runs anywhere. ``drafter``: by default
        what the configuration names. ``sleeper``: of that runner; the plain one's forgets the model if it can
        ``reload`` it. ``grammars``: for the model's vocabulary; without, no grammar is taken. ``whole``: no prompt is
        cut into chunks. ``expert_loads``: as in `Decoder`. ``adapters``: None: it takes none. ``draft``: a
        smaller model, or a head, that guesses. ``host``: slots of the host tier, as many as ``cache`` says; the plain
        runner has its own. ``exposed``: hidden states of the runner's last step."""
        self._adapters = adapters or Adapters()
        self._expert_loads = expert_loads
        self.config = config
        self.max_model_len = cache.max_model_len
        self._longest = self.max_model_len  # tokens at which a sequence ends
        self.vocab_size = model.config.vocab_size
        self.vector_size = 0  # of what a text becomes, where that is a vector
        self.hidden_size = model.config.hidden_size
        if runner is None:
            assert isinstance(model, Decoder)  # noqa: S101 -- an encoder comes with its runner
            runner, sleeper, host = _plain(model, config, cache, reload)
        self.runner: Runner = runner
        self._sleeper = sleeper
        self._host = host
        self.blocks = _blocks(config, cache, runner.windows, host)
        self.scheduler = _scheduler(config, self.blocks, whole)
        self.asleep = False
        drafter = drafter or (NgramDrafter() if config.speculation == "ngram" else None)
        self._speculation = Speculation(drafter) if drafter else None
        self._draft = draft
        if draft is not None:
            self._speculation = Speculation(draft.drafter, benefit=Benefit(draft.now), observer=draft.observer)
        self._exposed = exposed
        self._eos_ids = eos_ids
        self._grammars = grammars
        self.windows = Windows(lambda: self.runner.pages)
        self.exports = Exports(self.blocks, lambda: self.runner.pages, self.windows)
        self.imports = Imports(self.blocks, lambda: self.runner.pages, self.windows)
        self._sequences: dict[int, Sequence] = {}
        self._launched: deque[tuple[list[Sequence], Launched]] = deque()
        self._timer = StepTimer(self.scheduler.pace)
        self._arrivals = 0
        self._steps = 0
        self._decodes = 0  # sequences of the last step, if it computed one token of each
        self._expert_pairs: list[int] = []

    @classmethod
    def from_checkpoint(
        cls,
        checkpoint: Checkpoint,
        config: EngineConfig,
        on_stage: OnStage = lambda stage, done, total: None,
        team: "Team | None" = None,
    ) -> "Engine":
        """Load and build. team: the ranks that the model is divided among; None: it is on this one alone. Raises
        ConfigError before loading if the KV cache cannot be as asked, ModelError while."""
        alone = SINGLE_ORDERED if config.batch_invariant else SINGLE
        draft = draft_model(checkpoint, config)  # first, for what is left of a card becomes the other's cache
        made = computing(checkpoint, config, alone if team is None else team.group, on_stage)
        grammars = _grammars(checkpoint, made.eos_ids, pinned=config.device.startswith("cuda"))
        runner, sleeper, places = made.runner, made.sleeper, made.places
        of_all: AdapterPlaces | None = places
        host: HostPages | None = made.host
        if team is not None:
            division = Division.of_share(made.model.config, config.block_size)
            runner = leading = LeadingRunner(made.runner, team.followers, division)
            sleeper = LeadingSleeper(made.sleeper, leading) if made.sleeper else None
            of_all = LeadingPlaces(places, team.followers) if places else None
            host = LeadingHostPages(made.host, team.followers) if made.host else None
        return cls(
            made.model,
            config,
            made.cache,
            made.eos_ids,
            runner=runner,
            sleeper=sleeper,
            grammars=grammars,
            expert_loads=made.expert_loads,
            adapters=Adapters(of_all),
            draft=draft,
            host=host,
            exposed=made.exposed,
        )

    @property
    def has_work(self) -> bool:
        """Something can be computed, or is."""
        if self._launched or not self.imports:
            return bool(self._sequences or self._launched)
        return any(not sequence.awaits_blocks for sequence in self._sequences.values())

    @property
    def layout(self) -> CacheLayout | None:
        """Of blocks that travel to another backend or come from one; None: they cannot."""
        pages = self.runner.pages
        if pages is None:
            return None
        keys, values = pages.block_bytes
        return CacheLayout(
            layers=pages.layers,
            block_size=self.blocks.block_size,
            key_bytes=keys,
            value_bytes=values,
            dtype=pages.dtype,
            windows=pages.groups.kept_windows(),
        )

    @property
    def stats(self) -> Stats:
        s = self.scheduler
        if not self.has_work and not self.asleep:
            self._expert_pairs = self._expert_loads()
        tier = self.blocks.tier
        return Stats(
            running=len(s.running),
            waiting=len(s.waiting) + len(s.loading),
            used_blocks=self.blocks.num_used,
            total_blocks=len(self.blocks.blocks),
            preemptions=s.num_preemptions,
            prefix_queries=s.prefix_queries,
            prefix_hits=s.prefix_hits,
            steps=self._steps,
            draft_tokens=self._speculation.proposed if self._speculation else 0,
            draft_tokens_accepted=self._speculation.accepted if self._speculation else 0,
            draft_places=list(self._speculation.by_place) if self._speculation else [],
            swaps=s.num_swaps,
            **({} if tier is None else tier.stats),
            expert_pairs=self._expert_pairs,
        )

    def add(
        self,
        id: int,
        prompt: list[int],
        params: SamplingParams,
        *,
        priority: int = 0,
        leader: int | None = None,
        cache_root: bytes = b"",
        project: bytes = b"",
        adapter: str = "",
        exports: int | None = None,
        fetches: bool = False,
        window: bytes = b"",
        adapter_digest: str = "",
    ) -> None:
        """Queue a sequence.

        ``leader``: id of a sequence with the same prompt, to share its blocks (n > 1). ``project``: for whom, so that
        none is served at another's cost. ``adapter``: the name of a loaded one, which has to have that digest, if any
        is given. ``exports``: from this block of the
        prompt on, its blocks are for another backend (`Exports`), through this ``window``, if any. ``fetches``: they
        come from another one (`Imports`). Raises Overloaded when the queue is full, ContextLengthExceeded when no token
        fits behind the prompt, InvalidRequest for an empty prompt, a token outside the vocabulary or an id in use,
        AdapterUnknown.
        """
        self._refuse(id, prompt, params)
        slot, rooted = self._adapters.take(adapter, project, adapter_digest)
        ignores_eos = params.ignore_eos and not params.grammar  # nothing else can follow a whole text of a grammar
        sequence = Sequence(
            id,
            prompt,
            params,
            arrival=self._arrivals,
            priority=priority,
            leader=self._sequences.get(leader) if leader is not None else None,
            cache_root=rooted(cache_root),
            project=project,
            adapter=slot,
            matcher=self._matcher(params),
            restriction=Restriction(params, self.vocab_size) if params.restricted else None,
            max_length=self._longest,
            ends=frozenset(params.stop_token_ids) | (frozenset() if ignores_eos else self._eos_ids),
        )
        self._arrivals += 1
        self._sequences[id] = sequence
        self.scheduler.add(sequence)
        if exports is not None:
            self.exports.begin(sequence, exports, window)
        if fetches:
            self.imports.begin(sequence)

    def _refuse(self, id: int, prompt: list[int], params: SamplingParams) -> None:
        """Raises the errors of `add`."""
        self._require_awake()
        if id in self._sequences:
            raise InvalidRequest(f"sequence {id} is already there; use another id")
        self._refuse_prompt(prompt)
        if len(self.scheduler.waiting) >= self.config.max_waiting + self._free_places:
            raise Overloaded(f"{len(self.scheduler.waiting)} sequences are waiting; try again after Retry-After")
        if params.grammar and (self._grammars is None or not self._eos_ids):
            raise InvalidRequest(
                "this model cannot follow a grammar; leave the form of the answer out", param="response_format"
            )
        if self.runner.plain_only and not params.plain:
            raise InvalidRequest(
                "this device samples without penalties, biases, grammars and logprobs; leave these parameters out",
                code="unsupported_parameter",
            )

    def _refuse_prompt(self, prompt: list[int]) -> None:
        """Raises InvalidRequest for no prompt or a token outside the vocabulary, ContextLengthExceeded for one after
        which no token fits."""
        if not prompt:
            raise InvalidRequest("the prompt is empty; send at least one token", param="prompt")
        if min(prompt) < 0 or max(prompt) >= self.vocab_size:
            raise InvalidRequest(
                f"a token id is outside the vocabulary; send ids from 0 to {self.vocab_size - 1}", param="prompt"
            )
        if len(prompt) >= self._longest:
            raise ContextLengthExceeded(
                f"the prompt has {len(prompt)} tokens; with at least one of answer at most {self.max_model_len} fit",
                param="prompt",
            )

    def _matcher(self, params: SamplingParams) -> GrammarMatcher | None:
        """What holds a sequence to its grammar; None for a sequence without one."""
        if not params.grammar or self._grammars is None:
            return None
        return self._grammars.matcher(params.grammar, params.grammar_after, params.thought_token, params.grammar_size)

    @property
    def _free_places(self) -> int:
        return self.config.max_num_seqs - len(self.scheduler.running) - len(self.scheduler.loading)

    def abort(self, id: int) -> None:
        """Forget a sequence and free its blocks at once. Harmless for an unknown or finished one."""
        if id in self._sequences:
            self._forget(self._sequences[id])
        self.exports.drop(id)
        self._tidy()

    def make_room(self) -> list[Room]:
        """Of prompts that are to come from another backend, those for which there is room now."""
        found = self.imports.make_room(len(self.scheduler.running)) if self.imports else []
        if found:
            self._tidy()  # what is written into these blocks may not be zeroed behind it
        return found

    def load_adapter(self, name: str, path: str, project: str = "", digest: str = "") -> LoadedAdapter:
        """See `Adapters.load`. Raises Asleep as well."""
        self._require_awake()
        return self._adapters.load(name, path, project, digest)

    def unload_adapter(self, name: str, project: str = "") -> None:
        """See `Adapters.unload`; its weights are zeroed. Raises Asleep as well."""
        self._require_awake()
        self._adapters.unload(name, project, self._sequences.values())

    def _require_awake(self) -> None:
        if self.asleep:
            raise Asleep("the backend is asleep; wake it with POST /wake, or try again later")

    def prepare(self) -> bool:
        """What `Runner.prepare` does; False if there is nothing to do."""
        return not self.asleep and self.runner.prepare()

    def scrub(self) -> int:
        """All of `scrubbing` at once; returns how many bytes of the free blocks are not zero when read back."""
        return sum(self.scrubbing())

    def scrubbing(self) -> Iterator[int]:
        """Drop unused blocks from the prefix cache, and zero all free blocks; then read them back, a part with
        each item, which is how many bytes of the part are not zero. Steps may run between two items: a block that a
        sequence has taken meanwhile is left out, and is zeroed when it is released.

        Asleep there is nothing: its memory was zeroed and given back. Raises CannotScrub if the device has no memory
        left to read the blocks back with; they are zeroed then, and unchecked.
        """
        if self.asleep:
            return
        free = self.blocks.forget_free()
        self.runner.scrub(free)
        self.blocks.dirty.clear()
        self.forget_host()
        for at in range(0, len(free), SCRUB_BLOCKS):
            if self._fell_asleep():
                return
            try:
                residue = self.runner.residue(self.blocks.free_of(free[at : at + SCRUB_BLOCKS]))
            except torch.OutOfMemoryError:
                raise CannotScrub(
                    "the free blocks were zeroed, but the device has no memory left to read them back; "
                    "try again when idle"
                ) from None
            yield residue
        if self._draft is not None:
            yield self._draft.drafter.residue()
        yield from self.windows.residues()
        yield from self._host_residues()

    def _host_residues(self) -> Iterator[int]:
        """As `scrubbing`, of the free slots of the host tier."""
        tier, host = self.blocks.tier, self._host
        if tier is None or host is None:
            return
        step = max(1, HOST_SCRUB_BYTES // tier.block_bytes)
        for at in range(0, tier.slots, step):
            if self._fell_asleep():
                return
            yield host.residue(tier.free_of(range(at, min(at + step, tier.slots))))

    @property
    def num_scrubbed(self) -> int:
        """Blocks that a scrub would zero now, those of the host tier included."""
        return self.blocks.num_free + (self.blocks.tier.slots if self.blocks.tier else 0)

    def forget_host(self) -> None:
        """Zero the host tier."""
        if self.blocks.tier is not None:
            self.blocks.tier.drop_all()
            self._tidy()

    def _fell_asleep(self) -> bool:
        return self.asleep

    def sleep(self, on_progress: OnProgress = lambda done, total: None) -> int:
        """Forget every key, value and prefix, and give memory back until `wake`; returns how many bytes.

        Harmless when it sleeps (0). Raises CannotSleep, and stays awake, while there are sequences, if the runner
        cannot sleep or if there is no room for what has to be kept.
        """
        if self.asleep:
            return 0
        if self._sequences or self.exports:
            raise CannotSleep(f"{max(1, len(self._sequences))} sequences are running; try again when they have ended")
        if self._sleeper is None:
            raise CannotSleep("this engine cannot release its memory; stop the backend instead")
        while self._launched:  # of sequences that are over, but whose last step ran on
            self._take_in(*self._launched.popleft())
        given = self._sleeper.sleep(on_progress)
        if self._draft is not None:
            given += self._draft.sleep_beside(self._sleeper, on_progress)
        self.blocks.forget_prefixes()
        self.forget_host()
        if self._host is not None:
            self._host.forget()
        self.windows.close()
        self.asleep = True
        return given

    def wake(self, on_progress: OnProgress = lambda done, total: None) -> None:
        """Serve again, as after the start. Harmless when it is awake. Raises CannotWake or ModelError, still asleep."""
        if self.asleep and self._sleeper is not None:
            self._sleeper.wake(on_progress)
            if self._draft is not None:
                self._draft.wake_beside(self._sleeper, on_progress)
            self.asleep = False

    def step(self) -> list[Progress]:
        """Launch one batch, and take in the oldest whose turn it is. An entry for each token that a sequence got, in
        order, and for each that failed."""
        benefit = None if self._speculation is None else self._speculation.benefit
        if benefit is None:
            return self._step()
        benefit.begin()
        progress = self._step()
        if self._decodes:
            benefit.end(self._decodes, sum(item.token is not None for item in progress))
        return progress

    def _step(self) -> list[Progress]:
        progress = self._catch_up()
        self._land()
        batch = self.scheduler.schedule()
        self._decodes = len(batch) if all(s.num_tokens == 1 and not s.admitted for s in batch) else 0
        self._steps += 1
        if self._steps % LOADS_STEPS == 0:
            self._expert_pairs = self._expert_loads()
        self._tidy()
        if self._speculation and not self._launched:
            drafted = self._speculation.draft(batch, self.blocks, self.config.max_num_batched_tokens)
            if drafted:
                drafted, ended = self._held_to_forms(drafted)
                return progress + ended + (self._verify(drafted) if drafted else [])
        if batch:
            self._launch(batch, progress)
        if self._launched and (len(self._launched) > self.runner.ahead or not batch):
            progress += self._take_in(*self._launched.popleft())
        elif not batch:
            self._await_load()
            self._await_grammar()
        self._tidy()
        return progress

    def _launch(self, batch: list[Scheduled], progress: list[Progress]) -> None:
        sampling = [s.sequence for s in batch if s.samples]
        guided = [sequence for sequence in sampling if sequence.matcher or sequence.restriction]

        def masks() -> Allowed:
            """Whether the allowed tokens depend on tokens that are still in flight."""
            while self._launched:
                progress.extend(self._take_in(*self._launched.popleft()))
            return self._allowed(guided, progress)

        prompt_tokens, tokens = _sizes(batch)
        if self.blocks.tier is not None:
            self.blocks.tier.begin_step(prompt_tokens, tokens)
        self._timer.launch(tokens - prompt_tokens, prompt_tokens)
        launched = self.runner.launch(batch, masks if guided else None)
        if self._speculation:
            there = [(s.sequence, s.num_tokens) for s in batch if s.sequence.status is not Status.FINISHED]
            self._speculation.observe(there, self._exposed)
        for scheduled in batch:
            scheduled.sequence.num_computed += scheduled.num_tokens
        self.exports.launched(batch)
        for sequence in sampling:
            sequence.num_pending += 1
        self._launched.append((sampling, launched))

    def _allowed(self, guided: list[Sequence], progress: list[Progress]) -> Allowed:
        there = [s for s in guided if s.status is not Status.FINISHED]
        matchers = [(s.id, s.matcher) for s in there if s.matcher is not None]
        allowed, failed = Allowed.nothing(self.vocab_size), list[int]()
        if matchers and self._grammars is not None:
            allowed, failed = self._grammars.allowed(matchers)
        others = {
            s.id: s.restriction.allowed(s.tokens[s.num_prompt :])
            for s in there
            if s.restriction is not None and s.id not in failed
        }
        allowed, left_nothing = allowed.restricted(others)
        if failed or left_nothing:  # seldom
            progress += self._ended(failed, Finish.GRAMMAR) + self._ended(left_nothing, Finish.NOTHING_LEFT)
        allowed.withhold({s.id: s.ends for s in there if s.may_not_end})
        return allowed

    def _ended(self, ids: list[int], finish: Finish) -> list[Progress]:
        """Forget sequences that cannot go on; their last entries, without a token."""
        ended = []
        for id in ids:
            sequence = self._sequences[id]
            ended.append(Progress(id, None, finish, sequence.num_cached or 0))
            self._forget(sequence)
        return ended

    def _await_grammar(self) -> None:
        """Nothing can run before a grammar is compiled: wait a little, so that the caller does not spin."""
        compiling = (s.matcher for s in self.scheduler.waiting if s.matcher is not None and not s.matcher.ready)
        if matcher := next(compiling, None):
            matcher.wait(GRAMMAR_WAIT_S)

    def _land(self) -> None:
        """Take note of the blocks that have come from the host."""
        if self._host is None or self.blocks.tier is None:
            return
        for sequence in self.scheduler.loading:
            load = sequence.load
            if load is not None and not load.over and (seconds := self._host.arrived(load.number)) is not None:
                self.blocks.tier.end(load, seconds)
                self.blocks.land(sequence)

    def _await_load(self) -> None:
        """Nothing can run before blocks have come from the host."""
        loads = [s.load.number for s in self.scheduler.loading if s.load is not None and not s.load.over]
        if self._host is not None and loads and all(self._host.arrived(number) is None for number in loads):
            time.sleep(LOAD_WAIT_S)

    def _tidy(self) -> None:
        """Copy to the host and from there, zero what was left behind, then make the copies that forks need."""
        if self.blocks.tier is not None and self._host is not None:
            for operation in self.blocks.tier.todo:
                self._host.do(operation)
            self.blocks.tier.todo = []
        if self.blocks.dirty:
            self.runner.scrub(self.blocks.dirty)
            self.blocks.dirty = []
        if self.blocks.copies:
            self.runner.copy(self.blocks.copies)
            self.blocks.copies = []

    def _catch_up(self) -> list[Progress]:
        """Wait for steps in flight if a drafter then has something to guess from."""
        if self._speculation and self._launched and self._speculation.promises(self.scheduler.running):
            return self._take_in(*self._launched.popleft())
        return []

    def _take_in(self, sequences: list[Sequence], launched: Launched) -> list[Progress]:
        progress = []
        tokens = launched.tokens()
        self._timer.end()
        if self.blocks.tier is not None:
            self.blocks.tier.end_step()
        for sequence, first, logprobs in launched.prompt_logprobs():
            # Tokens known behind them stay: recomputed after a preemption, a chunk may be shorter than before.
            sequence.prompt_logprobs[first : first + len(logprobs)] = logprobs
        for sequence, token, found, row in zip(
            sequences, tokens, launched.logprobs(), launched.activations(), strict=True
        ):
            if sequence.status is Status.FINISHED:
                continue  # it ran on because its end was not known yet
            sequence.num_pending -= 1
            progress.append(self._append(sequence, token, found, row))
        return progress

    def _held_to_forms(self, batch: list[Drafted]) -> tuple[list[Drafted], list[Progress]]:
        """The same with what grammars allow at each place, and the last entries of those that cannot go on."""
        held: list[Drafted] = []
        failed: list[int] = []
        for drafted in batch:
            sequence = drafted.sequence
            if sequence.matcher is None or self._grammars is None:
                held.append(drafted)
                continue
            found = self._grammars.along(sequence.id, sequence.matcher, drafted.guesses, sequence.ends)
            if found is None:
                failed.append(sequence.id)
            else:
                held.append(Drafted(sequence, *found))
        return held, self._ended(failed, Finish.GRAMMAR)

    def _verify(self, batch: list[Drafted]) -> list[Progress]:
        assert self._speculation is not None  # noqa: S101
        self._tidy()  # guesses may have taken blocks
        progress = []
        verified = self.runner.verify(batch)
        checked = [(item, agreed(item.guesses, drawn), drawn) for item, drawn in zip(batch, verified, strict=True)]
        self._speculation.observe([(drafted.sequence, 1 + right) for drafted, right, _ in checked], self._exposed)
        for (drafted, accepted, drawn), rows in zip(checked, self.runner.checked_activations(), strict=True):
            sequence = drafted.sequence
            sequence.num_computed += 1 + accepted
            self._speculation.record_accepted(drafted, accepted)
            for at, token in enumerate(drawn[: accepted + 1]):
                progress.append(self._append(sequence, token, activations=rows[at] if rows else None))
                if progress[-1].finish is not None:
                    break  # tokens drawn after an end are discarded
        return progress

    def _append(
        self,
        sequence: Sequence,
        token: int | None,
        logprobs: TokenLogprobs | None = None,
        activations: bytes | None = None,
    ) -> Progress:
        if token is None:
            self.blocks.disown(sequence)
            self.runner.scrub(self.blocks.private(sequence))
        else:
            sequence.tokens.append(token)
        finish = self._finish(sequence, token)
        if finish is not None:
            if token is not None:
                self.blocks.publish(sequence)
            self._forget(sequence)
        first = sequence.num_output == 1
        prompt = sequence.prompt_logprobs if first and sequence.prompt_logprobs else None
        started = sequence.started if first else None
        return Progress(
            sequence.id, token, finish, sequence.num_cached or 0, logprobs, prompt, started, activations=activations
        )

    def _forget(self, sequence: Sequence) -> None:
        del self._sequences[sequence.id]
        self.exports.ended(sequence.id, well=sequence.num_output > 0)
        self.imports.drop([sequence.id])
        self.scheduler.finish(sequence)
        if self._speculation:
            self._speculation.forget(sequence.id)

    def _finish(self, sequence: Sequence, token: int | None) -> Finish | None:
        if token is None:
            return Finish.ERROR
        if token in sequence.ends:
            return Finish.STOP
        if sequence.matcher and not sequence.matcher.accept(token):
            return Finish.GRAMMAR
        if len(sequence.tokens) >= sequence.max_length:
            return Finish.LENGTH
        return None


def _plain(
    model: Decoder, config: EngineConfig, cache: CacheSize, reload: Callable[[OnProgress], Decoder] | None
) -> tuple[Runner, Sleeper, HostPages | None]:
    """The runner that runs anywhere, with a cache of its own, its sleeper, and its host tier if there is one."""
    pages = KVCache(
        model.config,
        cache.num_blocks,
        config.block_size,
        model.embedding.dtype,
        config.device,
        groups=groups_of(config, model.config),
    )
    runner = (TokenwiseRunner if config.batch_invariant else ModelRunner)(model, pages)
    host = OwnHostPages(pages, cache.host_blocks) if cache.host_blocks else None
    return runner, HostSleeper(runner, reload), host


def _scheduler(config: EngineConfig, blocks: BlockManager, whole: bool) -> Scheduler:
    return Scheduler(
        blocks,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        whole=whole,
        pace=None if whole else _pace(config),
    )


def _blocks(
    config: EngineConfig, cache: CacheSize, windows: tuple[int | None, ...], host: HostPages | None
) -> BlockManager:
    whole = sum(window is None for window in windows) or len(windows)
    tier = HostTier(cache.host_blocks, host.slot_bytes, config.block_size, tables=whole) if host else None
    return BlockManager(
        cache.num_blocks,
        config.block_size,
        prefix_cache=config.prefix_cache,
        salt=config.cache_salt,
        tier=tier,
        windows=windows,
    )


def _sizes(batch: list[Scheduled]) -> tuple[int, int]:
    """Tokens of prompts, and of all."""
    counts = [s.num_tokens for s in batch]
    return sum(count for count in counts if count > 1), sum(counts)


def _pace(config: EngineConfig) -> PromptPace | None:
    """None where none is asked for, and where tokens may not depend on how a prompt is divided: the clock would."""
    if not config.step_latency_ms or config.batch_invariant:
        return None
    return PromptPace(config.step_latency_ms / 1000)


def _grammars(checkpoint: Checkpoint, eos_ids: frozenset[int], *, pinned: bool = False) -> MaskedGrammars | None:
    """None without a token that ends an answer: random weights may come without a tokenizer."""
    return MaskedGrammars(checkpoint.text, checkpoint.config.vocab_size, pinned=pinned) if eos_ids else None
