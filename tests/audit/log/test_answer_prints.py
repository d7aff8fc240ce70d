"""Fingerprints find an answer after the changes that people make, and no other text."""

import json
import random
import unicodedata
from functools import partial
from pathlib import Path

import pytest

from audit.log.answer_prints import (
    EXPECTED_FALSE,
    LEAST,
    MAX_CHARACTERS,
    PRINTS,
    SHORTEST,
    chance,
    letters_of,
    needed,
    prints_of,
    read,
    shingles_of,
    written,
)

SALT, OTHER_SALT = b"s" * 32, b"t" * 32
WORDS = ("sea", "tide", "harbour", "mast", "keel", "sail", "rope", "anchor", "wave", "storm", "gull", "pier", "island")


def prose(seed, words=300):
    """Sentences that no other seed gives."""
    rng = random.Random(seed)
    return " ".join(f"{rng.choice(WORDS)}{rng.choice(['', ',', '.'])}" for _ in range(words))


def common(answer, text, salt=SALT):
    prints, _ = prints_of(salt, [answer])
    return len(shingles_of(salt, text).intersection(read(written(prints)))), len(prints) // 4


def is_match(answer, text, records=1_000_000):
    found, prints = common(answer, text)
    return found >= needed(prints, len(shingles_of(SALT, text)), records)


def edited(text, share, seed=1):
    rng = random.Random(seed)
    return " ".join("changed" if rng.random() < share else word for word in text.split())


@pytest.mark.parametrize(
    "changed",
    [
        lambda text: text,
        lambda text: text.replace(" ", "\n\n\t "),
        lambda text: text.upper(),
        lambda text: "> " + text.replace(",", " ,").replace(".", "!"),
        lambda text: "​".join(text),
        lambda text: "".join(chr(ord(c) + 0xFEE0) if c.isascii() and c.isalpha() else c for c in text),
        lambda text: edited(text, 0.05),
        lambda text: edited(text, 0.2),
        lambda text: text[: len(text) // 3],
        lambda text: text[len(text) // 2 :],
        lambda text: prose(1) + text[200:700] + prose(2),
    ],
    ids=["same", "space", "case", "marks", "zero width", "full width", "5 %", "20 %", "begin", "end", "inside"],
)
def test_an_answer_is_found_after_it_was_changed(changed):
    answers = [prose(seed) for seed in range(10, 20)]
    assert all(is_match(answer, changed(answer)) for answer in answers)


LANGUAGES = {
    "de": "Der Käufer größter Maßstäbe prüft, ob „der Vertrag“ über die Straße gültig ist; er fügt es sofort bei, und"
    " die Änderung der Größe – so heißt es – wäre unzulässig, denn naïve Leser fänden’s „schön“ und läsen weiter.",
    "fr": "Le prestataire a dit : « L’œuvre d’été sera livrée à l’hôtel où l’efficacité a été vérifiée. » Il ajoute que"
    " les données restent à Paris, où l’élève reçoit ses cœurs et ses affiches, avant la fin de l’été et sans frais.",
    "el": "Ο λόγος της συμφωνίας είναι σαφής και ο πωλητής παραδίδει τα αγαθά στον αγοραστή εντός της προθεσμίας. Η"
    " ευθύνη περιορίζεται στα έξοδα και ο όρος ισχύει από την υπογραφή της σύμβασης, όπως ορίζεται στους νόμους.",
    "ja": "契約書の内容を確認したうえで、買主は売主に対して代金を支払うものとします。ガーデンのデータは東京で保管され、"
    "バックアップは毎日行われます。パーティーのプログラムについては別紙をご覧ください。ご不明な点はお問い合わせください。",
}
QUOTES = str.maketrans({"„": '"', "“": '"', "’": "'", "«": '"', "»": '"', "–": "-"})


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize(
    "changed",
    [
        *(partial(unicodedata.normalize, form) for form in ("NFC", "NFD", "NFKC", "NFKD")),
        lambda text: text.upper(),
        lambda text: text.translate(QUOTES),
        lambda text: text.replace("„", "»").replace("“", "«"),
        lambda text: text.replace("ß", "ss").replace("ffi", "ﬃ").replace("fi", "ﬁ"),
        lambda text: "\u00ad".join(text),
        lambda text: text.replace(" ", "\u00a0"),
        lambda text: "> **" + text.replace(". ", ".**\r\n> *"),
        lambda text: text.replace("Vertrag", "Text").replace("Paris", "Lyon").replace("σαφής", "απλός"),
    ],
    ids=[
        "NFC",
        "NFD",
        "NFKC",
        "NFKD",
        "case",
        "quotes",
        "guillemets",
        "ligatures",
        "hyphens",
        "space",
        "marks",
        "word",
    ],
)
def test_an_answer_is_found_in_another_form_of_unicode_and_with_other_quotes(language, changed):
    assert is_match(LANGUAGES[language], changed(LANGUAGES[language]))


def test_letters_in_another_spelling_are_other_letters():
    """A limit that the documents state: accents left out, umlauts written out."""
    plain = "".join(one for one in unicodedata.normalize("NFD", LANGUAGES["fr"]) if not unicodedata.combining(one))
    assert not is_match(LANGUAGES["fr"], plain)


def test_other_texts_and_translations_do_not_match():
    texts = [prose(seed) for seed in range(40)]
    stored = [read(written(prints_of(SALT, [text])[0])) for text in texts]
    for at, text in enumerate(texts):
        shingles = shingles_of(SALT, text)
        assert not any(shingles.intersection(prints) for other, prints in enumerate(stored) if other != at)


def test_another_tenants_salt_finds_nothing_and_shares_nothing():
    text = prose(1)
    mine, theirs = prints_of(SALT, [text])[0], prints_of(OTHER_SALT, [text])[0]
    assert not {*read(written(mine))} & {*read(written(theirs))}
    assert not shingles_of(OTHER_SALT, text).intersection(read(written(mine)))


@pytest.mark.parametrize("words", [30, 300, 3_000, 60_000])
def test_the_record_of_an_answer_is_bounded_whatever_its_length(words):
    prints, letters = prints_of(SALT, [prose(1, words)])
    assert len(written(prints)) <= 256 and len(prints) <= 4 * PRINTS
    assert letters <= MAX_CHARACTERS


def test_every_stretch_of_two_blocks_holds_a_fingerprint():
    answer = prose(3, 1000)
    letters = letters_of(answer)
    block = (len(letters) - 31) // PRINTS
    stored = read(written(prints_of(SALT, [answer])[0]))
    for at in range(0, len(letters) - 2 * block - 33, 97):
        assert shingles_of(SALT, letters[at : at + 2 * block + 33]).intersection(stored)


def test_choices_are_fingerprinted_apart_and_each_is_found():
    several = [prose(5), prose(6), prose(7)]
    prints, letters = prints_of(SALT, several)
    assert letters == sum(len(letters_of(one)) for one in several)
    for one in several:
        assert len(shingles_of(SALT, one).intersection(read(written(prints)))) >= 10
    seam = letters_of(several[0])[-31:] + letters_of(several[1])[:31]
    assert not shingles_of(SALT, seam).intersection(read(written(prints))), "no shingle spans two choices"


@pytest.mark.parametrize("letters", [0, 31, SHORTEST - 1])
def test_a_text_that_is_too_short_has_none(letters):
    text = letters_of(prose(8))[:letters]
    assert prints_of(SALT, [text]) == (b"", letters)


def test_the_shortest_text_has_enough_for_a_match():
    text = letters_of(prose(8))[:SHORTEST]
    assert is_match(text, text)


def test_a_text_of_one_letter_has_none():
    assert prints_of(SALT, ["a" * 5_000])[0] == b""


def test_half_a_character_of_a_broken_stream_is_left_out():
    assert letters_of("sea\ud83d tide") == "seatide"
    assert prints_of(SALT, [prose(1) + "\ud83d"])[0] == prints_of(SALT, [prose(1)])[0]


@pytest.mark.parametrize("shingles", [100, 2_000, 250_000])
@pytest.mark.parametrize("records", [1, 10_000_000])
def test_the_number_that_is_a_match_keeps_the_bound(shingles, records):
    enough = needed(PRINTS, shingles, records)
    assert LEAST <= enough <= PRINTS
    assert chance(enough, PRINTS, shingles) * records <= EXPECTED_FALSE
    assert enough == LEAST or chance(enough - 1, PRINTS, shingles) * records > EXPECTED_FALSE


def test_a_search_that_no_number_would_decide_asks_for_more_than_there_are():
    assert needed(3, 1 << 31, 10**9) == 4


def test_the_bound_holds_for_hashes_of_fewer_bits_where_chance_is_seen():
    """The same bound at 12 bits, where matches by chance occur: their share is below it."""
    rng = random.Random(4)
    tried, bits, prints, shingles = 20_000, 12, 12, 40
    hits = 0
    for _ in range(tried):
        text = {rng.getrandbits(bits) for _ in range(shingles)}
        hits += len(text.intersection(rng.getrandbits(bits) for _ in range(prints))) >= 2
    bound = 66 * (shingles / 2**bits) ** 2
    assert 0 < hits / tried <= bound


@pytest.mark.parametrize("said", ["", "é", "AAAAA", "A"])
def test_what_is_no_fingerprint_is_refused(said):
    if said == "":
        assert not read(said)
        return
    with pytest.raises(ValueError, match=r"."):
        read(said)


def test_real_texts_of_people_match_only_where_they_quote():
    """Prose of CHANGELOG and pages of this repository: two pages match only where one quotes the other."""
    root = Path(__file__).parents[3]
    pages = sorted((root / "docs" / "adr").glob("0*.md"))[:60]
    texts = [page.read_text(encoding="utf-8") for page in pages]
    stored = [read(written(prints_of(SALT, [text])[0])) for text in texts]
    for at, text in enumerate(texts):
        shingles = shingles_of(SALT, text)
        for other, prints in enumerate(stored):
            if other != at:
                assert len(shingles.intersection(prints)) < LEAST, json.dumps([pages[at].name, pages[other].name])
