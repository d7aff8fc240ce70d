"""``python -m backend.quantization``: the table of weight formats in docs/models.md, made from the registry."""

from backend.quantization import FORMATS

BEGIN, END = "<!-- formats: python -m backend.quantization -->\n", "<!-- end of formats -->\n"
HEAD = (
    "| `--quantization` | weights | `quant_method` of checkpoints | from any checkpoint | deterministic |\n"
    "|---|---|---|---|---|\n"
)


def table() -> str:
    rows = (
        f"| `{f.name}` | {f.summary} | {', '.join(f'`{method}`' for method in f.methods) or 'none'} | "
        f"{'yes' if f.from_any else 'no'} | {'yes' if f.batch_invariant else 'no'} |\n"
        for f in FORMATS
    )
    return BEGIN + HEAD + "".join(rows) + END


if __name__ == "__main__":
    print(table(), end="")
