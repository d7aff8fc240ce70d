"""What can be known of the compiled kernels without a GPU."""

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.conftest import CAMPAIGN

ROOT = Path(__file__).resolve().parents[3]
SHARED_MEMORY_OF = {80: 163, 89: 99, 100: 227, 120: 99}  # KiB of a block
REGISTERS, SHARED_MEMORY = 65536, 227 * 1024  # of a multiprocessor, the second in bytes (Hopper tuning guide)

KERNELS = {
    "_apply_bitmask", "_block_best", "_combine", "_commit", "_count_outputs", "_fold_latents", "_fp8_block_linear",
    "_gather", "_grouped_linear", "_grouped_mxfp4", "_int8_linear", "_join_parts", "_latent_attention",
    "_latent_decode", "_latent_rotary", "_mark_prompt", "_narrow_linear", "_paged_attention", "_paged_decode",
    "_peer_rms_norm", "_penalise", "_per_head_linear", "_place", "_prepare", "_quantize_groups", "_quantize_int8",
    "_quantize_rows", "_quantize_whole_rows", "_rms_norm", "_rotary_kv", "_route", "_row_best", "_shared_prefix",
    "_silu_mul", "_silu_mul_fp8", "_silu_mul_fp8_row", "_skinny_linear", "_threshold", "_token_logprobs",
    "_write_segments",
}  # fmt: skip


FACTS = ("digest", "kernel", "registers", "spilled", "shared", "threads", "tensor_cores")
KNOWN = Path(__file__).with_name("hopper_sample.jsonl")
RENEW = """kernels or the compiler changed; run
TRITON_INTERPRET=0 python -m tests.backend.kernels.hopper --sample 0 --write {}"""
PINNED = f"triton=={version('triton')}\n" in (ROOT / "constraints.txt").read_text()


def environment(kernel_cache):
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(kernel_cache), "PYTHONPATH": path}


def check(found):
    """What must be true of a compiled kernel."""
    on_tensor_cores = (
        "_fp8_block_linear", "_grouped_linear", "_grouped_mxfp4", "_int8_linear", "_latent_attention",
        "_latent_decode", "_narrow_linear", "_paged_attention", "_paged_decode", "_per_head_linear",
        "_shared_prefix",
    )  # fmt: skip
    # Accumulators of 64 rows and a rank of 512 fill the registers: Triton 3.6 spills 76 bytes, 3.7 none.
    assert found["spilled"] <= (128 if found["kernel"] == "_latent_decode" else 0), found
    assert found["tensor_cores"] == (found["kernel"] in on_tensor_cores), found
    assert found["shared"] <= SHARED_MEMORY, found
    if found["kernel"] == "_skinny_linear":  # for sums at its end, and not for x on its way to the weights
        assert found["shared"] <= 1024, found
    if found["kernel"] == "_paged_decode":  # two programs a multiprocessor keep enough bytes under way
        assert 2 * found["registers"] * found["threads"] <= REGISTERS, found
        assert 2 * found["shared"] <= SHARED_MEMORY, found


@pytest.mark.campaign
@pytest.mark.timeout(1200)  # half a minute of compiling, on a processor of its own, where no variant is known
def test_every_kernel_compiles_for_hopper_within_its_registers_and_shared_memory(tmp_path):
    """One test, since compiling takes most of its time. A campaign compiles every variant of each kernel.

    Otherwise a variant is compiled only if something that it depends on is not as it was when `KNOWN` was written.
    """
    script = ["-m", "tests.backend.kernels.hopper", *(() if CAMPAIGN else ("--sample", "0", "--known", str(KNOWN)))]
    done = subprocess.run(
        [sys.executable, *script], env=environment(tmp_path), cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    compiled = [json.loads(line) for line in done.stdout.splitlines()]
    assert {found["kernel"] for found in compiled} == KERNELS
    for found in compiled:
        check(found)
    assert any("known" not in found for found in compiled), "the compiler itself was asked"
    if PINNED:  # another compiler says other things: then every variant was compiled
        said = {found["digest"]: {name: found[name] for name in FACTS} for found in compiled}
        kept = {line["digest"]: line for line in map(json.loads, KNOWN.read_text().splitlines())}
        assert kept.items() <= said.items(), RENEW.format(KNOWN)
        assert CAMPAIGN or kept.keys() == said.keys(), RENEW.format(KNOWN)


OTHER_CARDS = {80: "A100", 89: "L40S and RTX 4090", 100: "B200", 120: "RTX 5090"}
KNOWN_ELSEWHERE = Path(__file__).with_name("other_cards_sample.jsonl")


@pytest.mark.parametrize("target", OTHER_CARDS, ids=OTHER_CARDS.get)
def test_every_kernel_compiles_for_other_cards_or_is_of_what_they_do_not_have(tmp_path, target):
    """Variants whose digest is in `KNOWN_ELSEWHERE` are not compiled again. To renew it, run with ``--write`` for each
    target and put the lines together, without those that another has."""
    words = ["--sample", "0", "--known", str(KNOWN_ELSEWHERE), "--target", str(target)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.backend.kernels.hopper", *words],
        env=environment(tmp_path),
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert {each["kernel"] for each in found} == KERNELS
    refused = [each for each in found if "refused" in each]
    assert all("fp8e4nv not supported in this architecture" in each["refused"] for each in refused)
    assert bool(refused) == (target == 80), "it alone has no FP8"
    launched = [each for each in found if "registers" in each]
    assert {each["kernel"] for each in launched} >= KERNELS - {each["kernel"] for each in refused}
    room = SHARED_MEMORY_OF[target] * 1024
    assert all(each["shared"] <= room for each in launched)
    assert all(each["spilled"] <= 64 for each in launched), "a little does not matter, much would"


def test_a_change_of_anything_that_a_kernel_depends_on_changes_its_digest():
    from tests.backend.kernels.hopper import digest  # its kernels are to be interpreted in this process

    class Kernel:
        cache_key = "source and what it calls"

    def of(kernel=Kernel, key="k", signature=("*bf16",), constants=((0, 16),), options="num_warps=4", attributes=()):
        return digest(kernel, key, signature, constants, options, attributes)

    class Changed:
        cache_key = "source and what it calls, changed"

    others = [of(Changed), of(key="l"), of(signature=("*fp16",)), of(constants=((0, 32),)), of(options="num_warps=8"),
              of(attributes=((0, "divisible by 16"),))]  # fmt: skip
    assert of() == of()
    assert len({of(), *others}) == 1 + len(others)
