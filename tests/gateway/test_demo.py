"""The demo beside another: the later one is told so before it touches anything of the first."""

import socket
from contextlib import closing

import pytest

from gateway.demo.run import alone, check_port, run_demo


async def test_a_second_demo_in_a_folder_is_refused_before_it_starts_anything(tmp_path):
    data, model = tmp_path / "data", tmp_path / "model.gguf"
    data.mkdir()
    with alone(data):
        with pytest.raises(OSError, match=r"a demo runs in .*data already; stop it, or give this one --data FOLDER"):
            await run_demo(data, 0, model, check=True)
        assert [file.name for file in data.iterdir()] == ["demo.lock"]
    with alone(data):
        pass  # the first has ended


async def test_a_taken_port_is_told_before_a_model_is_loaded(tmp_path):
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            OSError,
            match=f"cannot listen on 127.0.0.1:{port}: .*stop the program that has it, or take another port.*--port 0",
        ):
            await run_demo(tmp_path / "data", port, tmp_path / "model.gguf", check=True)
    assert not (tmp_path / "data").exists()
    check_port(0)
