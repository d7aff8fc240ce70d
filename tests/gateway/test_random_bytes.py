"""Random bytes by the page: never the same twice, in any thread and in any process."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from gateway.random_bytes import PAGE, RandomBytes, random_hex


def test_no_bytes_are_given_twice_to_any_thread():
    source = RandomBytes()
    with ThreadPoolExecutor(4) as threads:
        taken = list(threads.map(lambda _: source.take(12), range(4000)))
    assert len(set(taken)) == 4000
    assert {len(each) for each in taken} == {12}
    assert len(source.take(PAGE)) == PAGE
    assert len(random_hex(12)) == 24


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_gets_other_bytes_than_its_parent():
    source = RandomBytes()
    source.take(1)
    reader, writer = os.pipe()
    if not (child := os.fork()):
        os.write(writer, source.take(16))
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 16) != source.take(16)
    os.close(reader)
    os.close(writer)
