"""Locks of what is shipped, with hashes, and a wheelhouse from them for machines without a network.

    python deploy/requirements.py lock --uv build/dist-tools/bin/uv
    python deploy/requirements.py wheelhouse --python 3.11 --python 3.12 [--cpu torch==2.13.0+cpu] [--to wheelhouse]

`lock` writes deploy/requirements/*.txt from pyproject.toml and constraints.txt: one for each image, for every platform
and every patch release of Python (uv's universal resolution). `wheelhouse` downloads what they name, for Linux,
whatever Python runs this: markers that differ by patch release (`python_full_version < '3.11.3'`) are all taken.
`--cpu` leaves out PyTorch and what it brings for GPUs, and takes the build that it names from PyTorch's index.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

TREE = Path(__file__).parents[1]
FOLDER = TREE / "deploy" / "requirements"
GATEWAY = ("ner", "postgres", "redis", "otel", "pkcs11", "c2pa")
OVERRIDE = "onnxruntime==1.22.1 ; python_full_version < '3.14'"
"""constraints.txt pins it for the Pythons that it has wheels for; what needs it asks for another one above them."""
FOR_GPUS = re.compile(r"(torch|nvidia-(?!ml-py)[a-z0-9-]+|cuda-[a-z]+)==")
"""Not triton, which the engine asks for on any Linux."""
NOT_LINUX = re.compile(r"sys_platform == '(win32|emscripten)'")
PLATFORMS = ("2_36", "2_35", "2_34", "2_31", "2_28", "2_27", "2_26", "2_24", "2_17", "2_12", "2_5")
"""Debian 12 and later, of which the images are too, have a glibc that serves wheels for each of these (PEP 600)."""


def wanted() -> dict[str, list[str]]:
    """The requirements of each lock, as pyproject.toml has them."""
    project = tomllib.loads((TREE / "pyproject.toml").read_text(encoding="utf-8"))
    base, extras = project["project"]["dependencies"], project["project"]["optional-dependencies"]
    engine = extras["engine"]
    torch = [line for line in engine if re.match(r"(torch|triton)\b", line)]
    return {
        "build": project["build-system"]["requires"],
        "gateway": [*base, *(line for extra in GATEWAY for line in extras[extra])],
        "backend": [*base, *(line for line in engine if line not in torch)],
        "torch": torch,
    }


def lock(uv: Path) -> None:
    FOLDER.mkdir(exist_ok=True)
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as override:
        override.write(OVERRIDE)
        override.flush()
        _lock(uv, Path(override.name))


def _lock(uv: Path, override: Path) -> None:
    for name, lines in wanted().items():
        command = [uv, "pip", "compile", "--quiet", "-", "--universal", "--python-version", "3.11", "--generate-hashes"]
        options = ["--constraints", "constraints.txt", "--no-header", "--no-annotate", "--no-emit-index-url"]
        options += ["--overrides", str(override)]
        done = subprocess.run(  # noqa: S603  # the program that the caller names
            [str(word) for word in (*command, *options)],
            input="\n".join(lines),
            cwd=TREE,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"{name}: {done.stderr.strip()}; mend constraints.txt or pyproject.toml")
        (FOLDER / f"{name}.txt").write_text(done.stdout, encoding="utf-8")
        print(f"{name}.txt: {done.stdout.count('==')} packages")


def for_linux(locked: str) -> Iterator[str]:
    """The entries of a lock for Linux, without the markers that tell patch releases and machines apart."""
    for entry in re.split(r"\n(?=\S)", locked.strip()):
        head, *hashes = entry.split(" \\\n")
        pin, _, marker = head.partition(" ; ")
        if not NOT_LINUX.search(marker):
            yield " \\\n".join((pin, *hashes))


def wheelhouse(pythons: list[str], to: Path, *, cpu: str | None, cpu_index: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name in wanted():
            entries = for_linux((FOLDER / f"{name}.txt").read_text(encoding="utf-8"))
            pinned = Path(folder) / f"{name}.txt"
            pinned.write_text("\n".join(entry for entry in entries if not (cpu and FOR_GPUS.match(entry))))
            for python in pythons:
                print(f"== {name} for Python {python}")
                _download(["--require-hashes", "-r", str(pinned)], python, to)
    for python in pythons if cpu else []:
        print(f"== {cpu} for Python {python}")
        _download(
            ["--index-url", cpu_index, str(cpu)], python, to
        )  # a build that the lock, of the package index, lacks


def _download(what: list[str], python: str, to: Path) -> None:
    platforms = [f"--platform=manylinux_{each}_x86_64" for each in PLATFORMS] + ["--platform=manylinux2014_x86_64"]
    tags = [f"--abi=cp{python.replace('.', '')}", "--abi=abi3", "--abi=none", "--implementation=cp"]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    options = ["--only-binary=:all:", f"--python-version={python}", *tags, *platforms]
    done = subprocess.run([*command, *options, "-d", str(to), *what], check=False)  # noqa: S603
    if done.returncode:
        raise SystemExit(f"the wheels for Python {python} could not be downloaded; pip's lines above say why")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    locks = verbs.add_parser("lock")
    locks.add_argument("--uv", type=Path, required=True)
    house = verbs.add_parser("wheelhouse")
    house.add_argument("--python", action="append", required=True)
    house.add_argument("--to", type=Path, default=Path("wheelhouse"))
    house.add_argument("--cpu", metavar="REQUIREMENT")
    house.add_argument("--cpu-index", default="https://download.pytorch.org/whl/cpu", metavar="URL")
    options = parser.parse_args()
    if options.verb == "lock":
        lock(options.uv.absolute())
    else:
        wheelhouse(options.python, options.to, cpu=options.cpu, cpu_index=options.cpu_index)


if __name__ == "__main__":
    main()
