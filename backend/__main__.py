"""``python -m backend serve …``"""

from backend.cli.serve import app

if __name__ == "__main__":
    app(prog_name="python -m backend")
