import random

from hypothesis import given
from hypothesis import strategies as st

from regions.routing.prefixes import BLOCK_BYTES, MAX_BLOCKS, PrefixIndex, block_hashes


def prompt(*letters):
    return b"".join(letter.encode() * BLOCK_BYTES for letter in letters)


def test_a_prompt_is_cut_into_whole_blocks_each_named_by_all_before_it():
    one, two = block_hashes(prompt("a", "b", "c")), block_hashes(prompt("a", "x", "c"))
    assert len(one) == 3
    assert one[0] == two[0] and one[1] != two[1] and one[2] != two[2]
    assert block_hashes(prompt("a") + b"rest") == one[:1]
    assert block_hashes(b"short") == [] and len(block_hashes(b"x" * 10**6)) == MAX_BLOCKS


def test_two_projects_share_no_block():
    assert not set(block_hashes(prompt("a", "b"), b"one")) & set(block_hashes(prompt("a", "b"), b"two"))


def test_those_that_hold_most_come_first():
    index = PrefixIndex()
    index.remember("long", block_hashes(prompt("a", "b", "c")))
    index.remember("short", block_hashes(prompt("a")))
    index.remember("other", block_hashes(prompt("z")))
    assert list(index.longest(block_hashes(prompt("a", "b", "c", "d")))) == [{"long"}, {"long", "short"}]
    assert list(index.longest(block_hashes(prompt("a", "x")))) == [{"long", "short"}]
    assert list(index.longest(block_hashes(prompt("q")))) == [] == list(index.longest([]))


def test_a_cache_that_is_full_forgets_the_tail_of_what_was_used_longest_ago():
    index = PrefixIndex(blocks_a_backend=3)
    index.remember("b", block_hashes(prompt("a", "b")))
    index.remember("b", block_hashes(prompt("x", "y")))
    assert index.blocks("b") == 3
    assert list(index.longest(block_hashes(prompt("a", "b")))) == [{"b"}]
    assert len(list(index.longest(block_hashes(prompt("x", "y"))))) == 1
    index.remember("b", block_hashes(prompt("p", "q")))
    assert list(index.longest(block_hashes(prompt("a", "b")))) == []


def test_a_conversation_is_settled_where_it_went_on_and_one_that_only_shares_a_beginning_is_not():
    index = PrefixIndex()
    system, first, second = b"s" * 512, b"1" * 300, b"2" * 300
    assert not index.settled(block_hashes(system))  # nobody holds it
    index.remember("a", block_hashes(system + first))
    assert index.settled(block_hashes(system + first + first))
    index.remember("a", block_hashes(system + second))
    assert not index.settled(block_hashes(system + b"3" * 300))
    assert index.settled(block_hashes(system + first + first)) and index.settled(block_hashes(system + second))
    assert not index.settled([])


def test_what_it_keeps_of_blocks_goes_with_them():
    index = PrefixIndex(blocks_a_backend=6)
    for number in range(50):
        index.remember("a", block_hashes(b"s" * 512 + bytes([number]) * 512))
        assert index.contents["a"] <= 6 == max(6, index.blocks("a"))
    index.forget("a")
    assert index.contents == index._next == {} and index._parting == set()


def test_caches_that_are_full_still_differ_in_what_they_were_given_lately():
    index = PrefixIndex(blocks_a_backend=64)
    draw = random.Random(3)
    for number in range(400):
        index.remember("busy" if number % 4 else "idle", block_hashes(draw.randbytes(1024)))
    assert index.blocks("busy") == index.blocks("idle") == 64
    assert 2 * index.contents["idle"] < index.contents["busy"] <= 64


def test_one_that_is_forgotten_holds_nothing_and_its_place_is_taken_by_another():
    index = PrefixIndex()
    index.remember("old", block_hashes(prompt("a")))
    index.forget("old")
    index.forget("never known")
    index.remember("new", block_hashes(prompt("b")))
    assert list(index.longest(block_hashes(prompt("a")))) == []
    assert list(index.longest(block_hashes(prompt("b")))) == [{"new"}]


steps = st.lists(
    st.tuples(st.sampled_from(["remember", "forget"]), st.sampled_from("xyz"), st.text("ab", max_size=5)), max_size=40
)


@given(steps, st.text("ab", max_size=5))
def test_it_says_what_a_plain_list_of_caches_says(steps, asked):
    """With room for everything, whoever computed a prompt since it was last forgotten holds all its beginnings."""
    index, caches = PrefixIndex(), {}
    for what, name, letters in steps:
        if what == "forget":
            index.forget(name)
            caches.pop(name, None)
        else:
            index.remember(name, block_hashes(prompt(*letters)))
            caches.setdefault(name, set()).update(letters[:end] for end in range(1, len(letters) + 1))
    held = {n: max((end for end in range(len(asked) + 1) if asked[:end] in caches[n]), default=0) for n in caches}
    levels = sorted({size for size in held.values() if size}, reverse=True)
    expected = [{n for n, size in held.items() if size >= level} for level in levels]
    assert list(index.longest(block_hashes(prompt(*asked)))) == expected
