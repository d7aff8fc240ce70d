import pytest

from policy.redact.context.fields import places
from policy.redact.detectors.births import find_births
from policy.redact.detectors.plates import find_plates
from policy.redact.payment.bic import find_bics
from policy.redact.text.reading import Reading

FRAMES = [
    "{name}: {value}\n", "{name} ......... {value}\n", "{name}\n{value}\n\n", "* **{name}:** `{value}`",
    "<dt>{name}</dt><dd>{value}</dd>",
    '<label>{name}</label><input type="text" name="x" value="{value}"/>', '{{"{name}": "{value}"}}',
    "'{name}' => '{value}'",
    '{{"field": "{name}", "value": "{value}"}}', "Agent: {name}?\nUser: {value}\n", "{value} ({name}), x",
    "id;{name};z\n1;{value};2\n",
    "| {name} | a |\n|---|---|\n| {value} | b |\n", "<tr><th>a</th><th>{name}</th></tr><tr><td>b</td><td>{value}</td></"
                                                    "tr>",
    "{name}     a\n{value}  b   \n",
]  # fmt: skip
FIELDS = [
    (find_bics, "BIC", "COBADEFFXXX"), (find_bics, "SWIFT", "BNPAFRPP"), (find_plates, "Kennzeichen", "B-MW 4321"),
    (find_plates, "Immatriculation", "AB-123-CD"), (find_births, "Geburtsdatum", "12.05.1980"), (find_births,
    "Date of birth", "1980-05-12"),
]  # fmt: skip


@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize(("find", "name", "value"), FIELDS)
def test_a_named_field_is_found_in_every_layout(find, name, value, frame):
    text = frame.format(name=name, value=value)
    assert [text[start:end] for start, end in find(text, 0)] == [value]


@pytest.mark.parametrize(
    "text",
    [
        "The swift language is fast", "BIC codes have eleven signs", "| # | BIC | Kreditkarte | Konto |\n",
        "the plate must match", "plates 12-17 in appendix B", "born\n12.05.1980",
    ],
)  # fmt: skip
def test_words_that_follow_such_a_name_are_no_value(text):
    assert [*find_bics(text, 0), *find_plates(text, 0), *find_births(text, 0)] == []


def test_the_places_of_a_field_are_behind_it_and_below_it():
    reading = Reading("a;BIC\n1;COBADEFF\n2;BNPAFRPP")
    starts = [reading[start:end] for start, end in places(reading, 2, 5)]
    assert starts[1:] == ["COBADEFF", "BNPAFRPP"]


def test_an_account_vouches_for_the_bank_behind_it_of_its_own_country_alone():
    assert [*find_bics("DE89 3704 0044 0532 0130 00 (COBADEFFXXX)", 0)] == []
    reading = Reading("DE89370400440532013000 (COBADEFFXXX) (COMMERZBANK)")
    reading.taken.append((0, 22, "iban"))
    assert [reading[start:end] for start, end in find_bics(reading, 0)] == ["COBADEFFXXX"]
    reading = Reading("DE89370400440532013000 (BNPAFRPP)")
    reading.taken.append((0, 22, "iban"))
    assert [*find_bics(reading, 0)] == []
