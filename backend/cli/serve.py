"""``domicile backend``: run one backend of one tenant."""

from pathlib import Path
from typing import Annotated, Any

import typer

from backend.cli.capacity_plan import QUANTIZATION_HELP
from backend.cli.errors import USAGE, fail
from backend.cli.fetch import ModelCache, ModelLock, ModelSha256, Offline, fetch, fetched_draft, fetched_model
from backend.cli.scrub import scrub

app = typer.Typer(help="A tenant's inference backend: the engine and its server.", no_args_is_help=True)
app.command()(scrub)
app.command()(fetch)

Model = Annotated[str, typer.Option(help="GGUF file, Hugging Face folder, hub id, oci:// or s3:// name, or 'demo'.")]
Restarts = Annotated[
    int, typer.Option(min=0, help="Times in ten minutes that an engine which died is replaced; then it stays dead.")
]
Heartbeat = Annotated[
    Path | None, typer.Option(help="File to touch while the engine answers, for probes without a certificate.")
]
INVARIANT_HELP = (
    "The same tokens in any batch and on any power of two of ranks up to 8; slower, on a CPU most for prompts."
)
TensorParallelSize = Annotated[
    int, typer.Option(min=1, help="Cards, or on a CPU processes, that the model is divided among.")
]
PipelineParallelSize = Annotated[
    int, typer.Option(min=1, help="Stages of layers, each on as many ranks as --tensor-parallel-size.")
]
DataParallelSize = Annotated[
    int, typer.Option(min=1, help="Engines behind this server, each with the whole model on its own cards.")
]
HttpProcesses = Annotated[
    int, typer.Option(min=1, max=64, help="Processes that serve HTTP before one engine, on one port.")
]
ExpertParallel = Annotated[
    bool, typer.Option("--expert-parallel", help="Ranks hold a mixture's experts as wholes, not a part of each.")
]
SelfTuning = Annotated[
    bool, typer.Option(help="On a card that was never measured, a first start times its products for up to 90 s.")
]
RedundantExperts = Annotated[
    int, typer.Option(min=0, help="With --expert-parallel: copies on each rank of experts that are most in use.")
]
Speculation = Annotated[
    str | None,
    typer.Option(
        help="Guess tokens, check several at once. ngram: from the text; model: by a smaller model, eagle3: by an "
        "EAGLE-3 head, both in --draft-model; mtp: by the model's own layer for multi-token prediction."
    ),
]
DraftModel = Annotated[str, typer.Option(help="A smaller model of the same vocabulary, or a head, which guesses.")]
DraftSha256 = Annotated[
    str | None, typer.Option("--draft-sha256", metavar="SHA256", help="As --model-sha256, of --draft-model.")
]
DraftLock = Annotated[Path | None, typer.Option("--draft-lock", help="As --model-lock, of --draft-model.")]
Dtype = Annotated[
    str | None, typer.Option(help="float32, bfloat16 or float16; default: bfloat16 on a GPU, else float32.")
]
HostCacheBytes = Annotated[
    int, typer.Option(min=0, help="Host memory of each rank for KV blocks that no longer fit; 0: none.")
]
MaxNumSeqs = Annotated[int | None, typer.Option(help="Sequences that run at once; default: 256 on a GPU, else 32.")]
MaxPerProject = Annotated[
    int | None, typer.Option(help="Sequences of one project, running or queued; beyond that, 429.")
]
MaxNumBatchedTokens = Annotated[
    int | None, typer.Option(help="Token budget of one step; default: 8192 on a GPU, else 512.")
]
StepLatency = Annotated[
    float | None,
    typer.Option(
        "--step-latency-ms", min=0,
        help="Prompts are cut so that a step of running answers takes at most this, or twice what it takes without; "
        "0: no limit; default: 10 on a GPU, else 0.",
    ),
]  # fmt: skip
MaxAdapters = Annotated[
    int, typer.Option(min=0, help="LoRA adapters that may be loaded at a time; takes memory for each.")
]
MaxAdapterRank = Annotated[int, typer.Option(min=1, help="The highest rank of an adapter.")]
AdapterFolder = Annotated[Path | None, typer.Option(help="Folder of adapters; with --max-adapters.")]
ToolCallParser = Annotated[
    str, typer.Option(help="How the model writes calls: auto, from its template; none, hermes, llama3_json, mistral.")
]
ReasoningParser = Annotated[
    str, typer.Option(help="Whether the model thinks aloud: auto, from its template; none, think.")
]
GenerationConfig = Annotated[
    str,
    typer.Option(help="Sampling defaults of requests that set none: auto, the model's generation_config.json; none."),
]
RequestKey = Annotated[
    Path | None, typer.Option(help="Public key, PEM: answer only calls with a token that it verifies.")
]
Role = Annotated[
    str, typer.Option(help="mixed; prefill: computes prompts for others of its tenant; decode: answers with these.")
]
TransferPort = Annotated[
    int, typer.Option(min=0, max=65535, help="Where a prefill backend listens for these; 0 takes a free one.")
]
TransferTimeout = Annotated[
    float, typer.Option(min=0.1, help="Seconds without a byte after which a prompt is computed by who answers.")
]
TransferMemory = Annotated[
    bool,
    typer.Option(help="Exchange keys and values through memory with backends of this host and user; others get TLS."),
]
EvidenceProgram = Annotated[
    Path | None, typer.Option(help="Program that says what TPMs and GPUs attest; the kernel is asked besides.")
]
GPU_DEFAULTS = {
    "dtype": "bfloat16", "max_num_seqs": 256, "max_num_batched_tokens": 8192, "step_latency_ms": 10.0
}  # fmt: skip
CPU_DEFAULTS = {"dtype": "float32", "max_num_seqs": 32, "max_num_batched_tokens": 512, "step_latency_ms": 0.0}
SERVE_EXAMPLES = """
Serve a model over OpenAI's API.

Examples:

  Try the demonstration model on this machine:

    domicile backend serve --model demo --port 8000

  A model of the hub at one commit, fetched once and then taken from this host:

    domicile backend serve --model HuggingFaceTB/SmolLM2-135M-Instruct@12fd25f77366fa6b3b4b768ec3050bf629380bac

  A folder from Hugging Face, for one tenant's gateway only:

    domicile backend serve --model ./Llama-3.2-1B-Instruct --served-name llama-1b --host 0.0.0.0 --port 8443
      --cert backend.pem --key backend.key --ca ca.pem --peer-uri spiffe://domicile.eu/tenant/acme/gateway
"""


@app.callback()
def backend() -> None:
    """A tenant's inference backend: the engine and its server."""


@app.command(help=SERVE_EXAMPLES)
def serve(
    model: Model,
    served_name: Annotated[str | None, typer.Option(help="Name in requests; default: the model's.")] = None,
    model_sha256: ModelSha256 = None,
    model_lock: ModelLock = None,
    model_cache: ModelCache = None,
    offline: Offline = False,
    host: Annotated[str, typer.Option(help="Address to listen on; beyond loopback only with TLS.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one; see the ready line.")] = 8000,
    device: Annotated[str, typer.Option(help="cpu, or cuda.")] = "cpu",
    dtype: Dtype = None,
    max_model_len: Annotated[int | None, typer.Option(help="Prompt plus answer, in tokens.")] = None,
    kv_blocks: Annotated[int | None, typer.Option(help="KV cache blocks; overrides --kv-memory.")] = None,
    kv_memory: Annotated[float, typer.Option(help="KV cache, in GiB.")] = 1.0,
    quantization: Annotated[str | None, typer.Option(help=QUANTIZATION_HELP)] = None,
    kv_dtype: Annotated[str | None, typer.Option(help="fp8: half the KV cache, on a GPU.")] = None,
    gpu_memory: Annotated[float, typer.Option(help="Share of a GPU's memory that the engine may take.")] = 0.92,
    host_cache_bytes: HostCacheBytes = 0,
    block_size: Annotated[int, typer.Option(help="Tokens a KV block holds.")] = 16,
    max_num_seqs: MaxNumSeqs = None,
    max_waiting: Annotated[int, typer.Option(help="Sequences that may queue; beyond that, 503.")] = 256,
    max_per_project: MaxPerProject = None,
    max_num_batched_tokens: MaxNumBatchedTokens = None,
    step_latency_ms: StepLatency = None,
    prefix_cache: Annotated[bool, typer.Option(help="Reuse the KV blocks of shared prompt beginnings.")] = True,
    speculation: Speculation = None,
    draft_model: DraftModel = "",
    draft_sha256: DraftSha256 = None,
    draft_lock: DraftLock = None,
    draft_memory: Annotated[float, typer.Option(help="Its KV cache, in GiB.")] = 1.0,
    batch_invariant: Annotated[bool, typer.Option("--deterministic", "--batch-invariant", help=INVARIANT_HELP)] = False,
    tensor_parallel_size: TensorParallelSize = 1,
    pipeline_parallel_size: PipelineParallelSize = 1,
    data_parallel_size: DataParallelSize = 1,
    http_processes: HttpProcesses = 1,
    expert_parallel: ExpertParallel = False,
    redundant_experts: RedundantExperts = 0,
    self_tuning: SelfTuning = True,
    max_adapters: MaxAdapters = 0,
    max_adapter_rank: MaxAdapterRank = 16,
    adapters: AdapterFolder = None,
    tool_call_parser: ToolCallParser = "auto",
    reasoning_parser: ReasoningParser = "auto",
    generation_config: GenerationConfig = "auto",
    step_timeout: Annotated[float, typer.Option(help="Seconds after which a step counts as a hang.")] = 120.0,
    restarts: Restarts = 3,
    threads: Annotated[int | None, typer.Option(help="CPU threads of the engine.")] = None,
    cert: Annotated[Path | None, typer.Option(help="This backend's certificate, PEM.")] = None,
    key: Annotated[Path | None, typer.Option(help="Its private key, PEM.")] = None,
    ca: Annotated[Path | None, typer.Option(help="The CA that signs peers, PEM.")] = None,
    peer_uri: Annotated[str | None, typer.Option(help="The one URI SAN that may connect.")] = None,
    heartbeat: Heartbeat = None,
    request_key: RequestKey = None,
    evidence: EvidenceProgram = None,
    role: Role = "mixed",
    transfer_port: TransferPort = 0,
    transfer_timeout: TransferTimeout = 10.0,
    transfer_memory: TransferMemory = False,
    tenant: Annotated[str, typer.Option(help="Whose backend this is.")] = "",
    region: Annotated[str, typer.Option(help="Where it runs.")] = "",
    backend_id: Annotated[str, typer.Option(help="Which replica it is.")] = "",
) -> None:
    from backend.engine_config import EngineConfig
    from backend.errors import BackendError, ConfigError
    from backend.server import serving
    from backend.server.base_api import Identity
    from backend.server.tls import tls_files

    model, model_name = fetched_model(model, model_sha256, model_lock, model_cache, offline)
    draft_model = fetched_draft(draft_model, draft_sha256, draft_lock, model_cache, offline)
    try:
        config = EngineConfig(
            **_by_device(device, dtype, max_num_seqs, max_num_batched_tokens, step_latency_ms),
            model=model,
            device=device,
            block_size=block_size,
            num_blocks=kv_blocks,
            kv_memory=int(kv_memory * 2**30),
            quantization=quantization,
            kv_dtype=kv_dtype,
            gpu_memory=gpu_memory,
            host_cache_bytes=host_cache_bytes,
            max_model_len=max_model_len,
            threads=threads,
            step_timeout_s=step_timeout,
            self_tuning=self_tuning,
            max_waiting=max_waiting,
            max_per_project=max_per_project,
            prefix_cache=prefix_cache,
            speculation=speculation,
            draft_model=draft_model,
            draft_memory=int(draft_memory * 2**30),
            batch_invariant=batch_invariant,
            tensor_parallel_size=tensor_parallel_size,
            pipeline_parallel_size=pipeline_parallel_size,
            expert_parallel=expert_parallel,
            redundant_experts=redundant_experts,
            max_adapters=max_adapters,
            max_adapter_rank=max_adapter_rank,
            adapters=str(adapters or ""),
        )
    except ConfigError as error:
        fail(error, USAGE)
    try:
        options = serving.ServerOptions(
            served_name=served_name or model_name,
            host=host,
            port=port,
            tls=tls_files(cert, key, ca, peer_uri, host=host),
            identity=Identity(tenant, region, backend_id),
            heartbeat=heartbeat,
            tool_call_parser=tool_call_parser,
            generation_config=generation_config,
            reasoning_parser=reasoning_parser,
            restarts=restarts,
            request_key=request_key,
            evidence=evidence,
            data_parallel_size=data_parallel_size,
            http_processes=http_processes,
            role=role,
            transfer_port=transfer_port,
            transfer_timeout_s=transfer_timeout,
            transfer_memory=transfer_memory,
        )
        serving.serve(config, options)
    except BackendError as error:
        fail(error)


def _by_device(
    device: str,
    dtype: str | None,
    max_num_seqs: int | None,
    max_num_batched_tokens: int | None,
    step_latency_ms: float | None,
) -> dict[str, Any]:
    """Fields of an `EngineConfig`: those that are set, and for the others the device's defaults."""
    on_gpu = device.startswith("cuda")
    given = {
        "dtype": dtype, "max_num_seqs": max_num_seqs, "max_num_batched_tokens": max_num_batched_tokens,
        "step_latency_ms": step_latency_ms,
    }  # fmt: skip
    chosen: dict[str, Any] = GPU_DEFAULTS if on_gpu else CPU_DEFAULTS
    return chosen | {name: value for name, value in given.items() if value is not None}
