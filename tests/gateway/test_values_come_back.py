"""Values through a whole gateway and back: a model that echoes, one that bends placeholders, a conversation."""

import json
import re

import pytest

from tests.fakes.backend import FakeBackend
from tests.fakes.lab import chat, lab

EVERYTHING = """
policy: everything
version: 1
residency: {process_in: EEA, store_in: EEA, operator: {head_office: EEA, ultimate_parent: EEA}}
redaction:
  input: {email: pseudonymise, iban: pseudonymise, ip: pseudonymise, secret: pseudonymise, address: pseudonymise,
          date_of_birth: pseudonymise, card: pseudonymise, phone: pseudonymise}
  output: {email: mask, iban: mask, card: mask, phone: mask}
retention: {metadata: 12mo, content: none}
"""
PLACEHOLDER = re.compile(r"<[A-Z]+_[0-9]+_[a-z0-9]+>")
PROMPTS = [
    "mail max.muster@x.de and maxmuster@x.de",
    "Grant 84.12.1.34 access, deny 84.1.21.34",
    "Geburtsdatum: 1.11.1980 und Geburtsdatum: 11.1.1980",
    "Hauptstraße 1, 11111 Berlin und Hauptstraße 11, 1111 Berlin",
    f"ghp_aBcD{'e1F2' * 8} or ghp_AbCd{'e1F2' * 8}",
    "DE89370400440532013000 is DE89 3704 0044 0532 0130 00 is de89-3704-0044-0532-0130-00",
    "Max@Example.org is max@example.org",
]
BENT = {
    "newline": lambda label, number, nonce: f"<{label}_\n{number}_{nonce}>",
    "no underscores": lambda label, number, nonce: f"{label}{number}{nonce}",
    "renamed": lambda label, number, nonce: f"<MAIL_{number}_{nonce}>",
    "translated": lambda label, number, nonce: f"<Courriel_{number}_{nonce}>",
    "percent": lambda label, number, nonce: f"%3C{label}_{number}_{nonce}%3E",
    "JSON": lambda label, number, nonce: f"\\u003c{label}_{number}_{nonce}\\u003e",
}


def said(body):
    return body["messages"][-1]["content"]


@pytest.fixture
def echoing():
    return {"acme/eu-fr-par/acme-1": FakeBackend(say=said, pieces=7)}


async def test_the_text_that_comes_back_is_the_text_that_was_sent(tmp_path, echoing):
    async with lab(tmp_path, set_up=lambda made: made.tenant("acme", EVERYTHING), backends=echoing) as made:
        for prompt in PROMPTS:
            for stream in (False, True):
                answer = await made.post(chat(prompt, stream=stream))
                assert (answer.status, answer.text) == (200, prompt)
            placeholders = PLACEHOLDER.findall(said(echoing["acme/eu-fr-par/acme-1"].bodies[-1]))
            assert len(placeholders) == len(set(placeholders)) >= 2


@pytest.mark.parametrize("bend", BENT.values(), ids=BENT)
async def test_a_bent_placeholder_is_restored_and_another_requests_is_not(tmp_path, bend):
    def bending(body):
        label, number, nonce = PLACEHOLDER.search(said(body))[0][1:-1].split("_")
        return f"to {bend(label, number, nonce)} not {bend(label, number, 'zzzzzz')}."

    backends = {"acme/eu-fr-par/acme-1": FakeBackend(say=bending, pieces=9)}
    async with lab(tmp_path, set_up=lambda made: made.tenant("acme", EVERYTHING), backends=backends) as made:
        for stream in (False, True):
            answer = await made.post(chat("I am j.smith@x.de, not js.mith@x.de", stream=stream))
            assert answer.text.startswith("to j.smith@x.de not ") and "js.mith" not in answer.text
            assert "zzzzzz" in answer.text


async def test_in_a_conversation_the_order_does_not_change_a_placeholder(tmp_path, echoing):
    mails = [f"user{number:04}@x.de" for number in range(60)]
    async with lab(tmp_path, set_up=lambda made: made.tenant("acme", EVERYTHING), backends=echoing) as made:
        known = []
        for order in (mails, mails[::-1], mails[30:]):
            answer = await made.post(chat(json.dumps(order), metadata={"conversation_id": "k1"}))
            assert json.loads(answer.text) == order
            sent = json.loads(said(echoing["acme/eu-fr-par/acme-1"].bodies[-1]))
            known.append(dict(zip(order, sent, strict=True)))
    assert known[0] == known[1] and known[2].items() <= known[0].items()
