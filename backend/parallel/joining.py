"""How a process joins its group: torch.distributed over NCCL on cards, over gloo on a CPU.

All ranks are processes of one host. They find each other by a file in a folder that only their user may open, and
their sockets listen on the loopback interface.
"""

import os
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from backend.parallel.group import SINGLE, Alone, DistributedGroup, ParallelGroup
from backend.parallel.one_shot import OneShot, where_all_can
from backend.parallel.pipeline_stages import ONE_STAGE, DistributedPipeline, Pipeline
from backend.parallel.shard import WHOLE, Shard, Stage

TIMEOUT = timedelta(hours=1)  # of a collective: ranks load at different speed, and compile meanwhile
SETTINGS = {
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_IB_DISABLE": "1",  # one host
    "NCCL_NVLS_ENABLE": "0",  # multicast: a process that ends over it may leave the host's cards unusable
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
}


def join(
    shard: Shard,
    rendezvous: Path,
    device: str,
    *,
    ordered: bool = False,
    peer_memory: bool = True,
    stage: Stage = WHOLE,
    spare: int | None = None,
) -> ParallelGroup:
    """Waits until all ranks of all stages have come. device: "cpu", or "cuda" for the card of this rank's number among
    all. peer_memory: small sums go through it, where cards have it. spare: as in `ParallelGroup`.
    """
    size, number = shard.size * stage.count, stage.index * shard.size + shard.rank
    if size == 1:
        return SINGLE
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    on_gpu = device.startswith("cuda")
    place = torch.device("cuda", number) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(place)
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        init_method=f"file://{rendezvous}",
        rank=number,
        world_size=size,
        timeout=TIMEOUT,
        device_id=place if on_gpu else None,
    )
    own, pipeline = stages_of(shard, stage, place)
    if shard.alone:
        return Alone(ordered=ordered, pipeline=pipeline)
    small = None
    if on_gpu and peer_memory and not ordered:
        small = where_all_can(lambda: OneShot(place, shard.size, own), place, own)
    return DistributedGroup(shard, place, ordered=ordered, small=small, pipeline=pipeline, group=own, spare=spare)


def stages_of(shard: Shard, stage: Stage, device: torch.device) -> tuple[dist.ProcessGroup | None, Pipeline]:
    """The group of this rank's stage, and the stages. All ranks make all groups, in the same order."""
    if stage.count == 1:
        return None, ONE_STAGE
    rows = [[index * shard.size + rank for rank in range(shard.size)] for index in range(stage.count)]
    own = [dist.new_group(ranks, timeout=TIMEOUT) for ranks in rows][stage.index]
    columns = [dist.new_group(list(ranks), timeout=TIMEOUT) for ranks in zip(*rows, strict=True)]
    return own, DistributedPipeline(stage, shard, device, columns[shard.rank])


def leave() -> None:
    """Give the group's sockets and memory back; harmless outside of one."""
    if dist.is_initialized():
        dist.destroy_process_group()
