"""Random bytes that are drawn ahead: each is given once, whoever asks."""

import os
from concurrent.futures import ThreadPoolExecutor

from audit.random_pieces import AHEAD, RandomPieces


def test_each_piece_has_the_size_and_is_given_once():
    pieces = RandomPieces(12)
    given = [pieces() for _ in range(3 * AHEAD + 1)]
    assert {len(piece) for piece in given} == {12}
    assert len(set(given)) == len(given)


def test_threads_that_ask_at_once_get_different_pieces():
    pieces = RandomPieces(10)
    with ThreadPoolExecutor(8) as threads:
        given = list(threads.map(lambda _: pieces(), range(4000)))
    assert len(set(given)) == len(given)


def test_a_forked_process_gives_none_that_its_parent_gives():
    pieces = RandomPieces(16)
    pieces()  # so that some are ahead
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.write(write, b"".join(pieces() for _ in range(AHEAD)))
        os._exit(0)
    os.waitpid(child, 0)
    theirs = os.read(read, AHEAD * 16)
    ours = {pieces() for _ in range(AHEAD)}
    assert len(theirs) == AHEAD * 16
    assert not ours & {theirs[at : at + 16] for at in range(0, len(theirs), 16)}
