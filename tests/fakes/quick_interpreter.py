"""Triton's interpreter without most of its search for functions to replace.

At each call of a kernel, and of each function inside one, it looks through all members of `triton.language` and
replaces the built-in ones, which took a fifth of an interpreted kernel's time. Here the names of the built-in ones are
found once. At each call they are looked up and replaced as before.
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def quick(interpreter: Any) -> Iterator[None]:
    """While the block runs, for `interpreter` (the module `triton.runtime.interpreter`)."""
    real = interpreter._patch_builtin
    names: dict[int, tuple[Any, list[str]]] = {}

    def patch(package: Any, builder: Any, scope: Any) -> None:
        is_builtin = interpreter.tl.core.is_builtin
        if id(package) not in names:  # seen for the first time, so nothing in it has been replaced
            names[id(package)] = (package, [name for name, each in inspect.getmembers(package) if is_builtin(each)])
        for name in names[id(package)][1]:
            member = getattr(package, name)
            if is_builtin(member):
                interpreter._patch_attr(package, name, member, builder, scope)

    interpreter._patch_builtin = patch
    try:
        yield
    finally:
        interpreter._patch_builtin = real
