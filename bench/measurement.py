"""One run of measurements of models on a CPU: its options, its heading, and its figures, kept part by part."""

import argparse
import json
import platform
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch


def options_of(doc: str | None, *, count: int, of: str, repeats: int = 5) -> argparse.ArgumentParser:
    """What all have. count: of what `of` says."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--count", type=int, default=count, help=of)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=repeats, help="of what is timed")
    parser.add_argument("--json", type=Path, help="file of the figures, written again after each part")
    return parser


class Measurement:
    """Use `part` for each part. What a run that is cut short has measured stays in its file."""

    def __init__(self, options: argparse.Namespace, **more: Any) -> None:
        torch.set_num_threads(options.threads)
        self._file: Path | None = options.json
        self.found: dict[str, Any] = {
            "date": datetime.now(UTC).date().isoformat(),
            "machine": platform.processor() or platform.machine(),
            "torch": torch.__version__,
            "model": options.model,
            "count": options.count,
            **more,
        }

    def part(self, name: str, measure: Callable[[], Any]) -> Any:
        """What `measure` returns, printed and kept under that name."""
        found = self.found[name] = measure()
        print(f"{name}: {json.dumps(found)}", flush=True)
        if self._file is not None:
            self._file.write_text(json.dumps(self.found, indent=1) + "\n")
        return found
