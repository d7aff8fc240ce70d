"""``python -m backend.models.families``: the model table of docs/models.md, made from the registry."""

from backend.models.families import FAMILIES

BEGIN, END = "<!-- models: python -m backend.models.families -->\n", "<!-- end of models -->\n"
HEAD = (
    "| `architectures` in config.json | models | what it has | safetensors | GGUF | on a GPU |\n"
    "|---|---|---|---|---|---|\n"
)


def table() -> str:
    rows = (
        f"| `{f.architecture}` | {f.models} | {f.features} | yes | {f'`{f.gguf}`' if f.gguf else 'no'} | {f.gpu} |\n"
        for f in FAMILIES
    )
    return BEGIN + HEAD + "".join(rows) + END


if __name__ == "__main__":
    print(table(), end="")
