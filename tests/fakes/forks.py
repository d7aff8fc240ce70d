"""Processes that are forked from one that has imported what they run: a start costs what they do, not Python."""

import multiprocessing

WARM = ["tests.audit.crash_child", "tests.gateway.counting", "tests.gateway.dying"]
"""What children run: modules that import no more than that."""

forks = multiprocessing.get_context("forkserver")
forks.set_forkserver_preload(WARM)
