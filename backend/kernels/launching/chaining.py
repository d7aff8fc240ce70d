# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Programmatic dependent launch: a kernel's programs are set up while the kernel before it still runs.

A launch costs a microsecond in which no bytes flow: small models spend a quarter of a decode step that way. On Hopper a
kernel may be launched early and wait, on the card, for all that was written before it (CUDA programming guide,
"Programmatic dependent launch"). Every kernel here waits first thing, in every program, so that the end of one implies
the end of all before it; in front of the wait it may read only what no kernel writes, which is weights.
"""

from functools import cache
from typing import Any

import triton
import triton.language as tl
from triton.language.extra import cuda
from triton.runtime import driver

HOPPER = 90


@triton.jit
def after_predecessors(CHAINED: tl.constexpr):
    """Let the next kernel be set up, and go on when those before this one have ended."""
    if CHAINED:
        cuda.gdc_launch_dependents()
        cuda.gdc_wait()


@cache
def chained(wanted: bool = True) -> dict[str, Any]:
    """Arguments of a launch that takes part, if it is wanted and the card can; of an ordinary one elsewhere."""
    if not wanted or triton.knobs.runtime.interpret:
        return {"CHAINED": False}
    target = driver.active.get_current_target()
    if target.backend != "cuda" or int(target.arch) < HOPPER:
        return {"CHAINED": False}
    return {"CHAINED": True, "launch_pdl": True}
