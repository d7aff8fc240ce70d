"""Which cards go together, from what nvidia-smi prints."""

import os
import stat

import pytest

from regions.launchers.topology import Topology, parse, read

BRIDGES = """\
\t\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tGPU4\tGPU5\tGPU6\tGPU7\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNODE\tNV12\tNODE\tSYS\tSYS\tSYS\tSYS\tPIX\t0-31\t0\t\tN/A
GPU1\tNODE\t X \tNODE\tNV12\tSYS\tSYS\tSYS\tSYS\tNODE\t0-31\t0\t\tN/A
GPU2\tNV12\tNODE\t X \tPIX\tSYS\tSYS\tSYS\tSYS\tNODE\t0-31\t0\t\tN/A
GPU3\tNODE\tNV12\tPIX\t X \tSYS\tSYS\tSYS\tSYS\tNODE\t0-31\t0\t\tN/A
GPU4\tSYS\tSYS\tSYS\tSYS\t X \tNV12\tPHB\tPHB\tSYS\t32-63\t1\t\tN/A
GPU5\tSYS\tSYS\tSYS\tSYS\tNV12\t X \tPHB\tPHB\tSYS\t32-63\t1\t\tN/A
GPU6\tSYS\tSYS\tSYS\tSYS\tPHB\tPHB\t X \tNV4\tSYS\t32-63\t1\t\tN/A
GPU7\tSYS\tSYS\tSYS\tSYS\tPHB\tPHB\tNV4\t X \tSYS\t32-63\t1\t\tN/A
NIC0\tPIX\tNODE\tNODE\tNODE\tSYS\tSYS\tSYS\tSYS\t X

Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NV#  = Connection traversing a bonded set of # NVLinks

NIC Legend:

  NIC0: mlx5_0
"""
SWITCHED = "\n".join(
    [
        "        GPU0    GPU1    GPU2    GPU3    CPU Affinity    NUMA Affinity",
        *(
            f"GPU{row}    " + "    ".join(" X " if row == column else "NV18" for column in range(4)) + "    0-95    N/A"
            for row in range(4)
        ),
    ]
)
ALONE = "        GPU0    CPU Affinity    NUMA Affinity\nGPU0     X      0-15            0\n"


@pytest.mark.parametrize(
    ("free", "count", "chosen"),
    [
        (range(8), 2, (0, 2)),  # bridged; of equals the lowest
        ((1, 2, 3, 4), 2, (1, 3)),
        ((0, 1, 4, 5), 2, (4, 5)),
        ((6, 7, 0, 1), 2, (6, 7)),
        (range(8), 4, (4, 5, 6, 7)),  # one socket, and no worse link than over its bridge
        ((0, 1, 2, 4), 2, (0, 2)),
        ((0, 5), 2, (0, 5)),
        (range(8), 8, tuple(range(8))),
        (range(8), 1, (3,)),
        ((0, 1, 2), 4, None),
    ],
    ids=str,
)
def test_the_cards_that_are_linked_best_go_together(free, count, chosen):
    found = parse(BRIDGES).choose(list(free), count)
    if count == 1:
        assert found is not None and len(found) == 1
    else:
        assert found == chosen


def test_behind_a_switch_all_are_alike():
    topology = parse(SWITCHED)
    assert topology.link(0, 3) == topology.link(2, 1) == 1800
    assert topology.choose([3, 1, 2], 2) == (1, 2)


def test_what_is_left_goes_together_too():
    """Two pairs of two bridges, and a fifth card: the pair is taken that leaves a pair."""
    topology = Topology({(0, 1): 400, (1, 2): 400, (3, 4): 400})
    assert topology.choose([0, 1, 2, 3, 4], 2) == (3, 4)


@pytest.mark.parametrize("text", ["", "no devices were found\n", ALONE, "GPU0\n", "\x1b[4m\n \tGPU0\tGPU1\n"])
def test_of_nothing_that_is_known_all_links_are_alike(text):
    assert parse(text).links == {}
    assert parse(text).choose([2, 5, 7], 2) == (2, 5)


def nvidia_smi(folder, script):
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)


def test_the_machine_is_asked_and_its_failure_is_logged(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    (tmp_path / "topo").write_text(BRIDGES)
    nvidia_smi(tmp_path, f'[ "$*" = "topo -m" ] && cat {tmp_path}/topo')
    assert read().link(0, 2) == 1200
    nvidia_smi(tmp_path, "exit 9")
    assert read().links == {} and "nvidia-smi topo failed" in caplog.text
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    assert read().links == {} and "there is no nvidia-smi" in caplog.text
