"""The steps of the measurement are those of the pages; a page that changes takes them along, or fails here."""

import subprocess

from bench.tutorial.first_answer import MARK, script, steps

WHEEL = "domicile-9.9.9-py3-none-any.whl"


def test_the_steps_are_the_commands_of_the_pages_in_their_order():
    found = dict(steps(WHEEL))
    assert list(found) == [
        "install", "a model", "tenant, place, model and key", "gateway", "first answer", "after",
    ]  # fmt: skip
    assert f"pip install '{WHEEL}[engine" in found["install"]
    assert "torch==" in found["install"], "the build for CPUs, on a machine without a GPU"
    assert "domicile demo" not in found["install"]
    assert "export MODEL=" in found["a model"] and "/models/small.gguf" not in "".join(found.values())
    middle = found["tenant, place, model and key"]
    words = ["domicile init", "domicile tenant create", "domicile deployment create", "domicile key create"]
    assert sorted(words, key=middle.index) == words
    assert found["gateway"].startswith("domicile up ")
    assert found["first answer"].startswith("curl ")


def test_they_are_one_script_that_a_shell_reads_with_a_mark_before_each_step():
    text = script(WHEEL)
    assert text.count(MARK) == len(steps(WHEEL)) + 1
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0
