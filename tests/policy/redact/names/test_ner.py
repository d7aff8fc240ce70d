import pytest

from policy.errors import RedactionError
from policy.redact.evaluate import evaluate
from policy.redact.names.ner import NameModel, _windows
from tests.data.redaction.make import cases


@pytest.fixture(scope="module")
def model():
    return NameModel()


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Please ask Maria Kowalska about it.", "Maria Kowalska"),
        ("Bonjour, je m'appelle Émile Dupont.", "Émile Dupont"),
        ("Sehr geehrter Herr Jürgen von der Heide,", "Jürgen von der Heide"),
        ("Il signor Giovanni D'Angelo ha chiamato.", "Giovanni D'Angelo"),
        ("Name: Γιώργος Παπαδόπουλος", "Γιώργος Παπαδόπουλος"),
        ("Το όνομά μου είναι Γιώργος Παπαδόπουλος και μένω εδώ.", "Γιώργος Παπαδόπουλος"),
        ("ok so my name is lena andersson, right?", "lena andersson"),
        ("mail from tom baker please", "tom baker"),
        ("Hello, this is Sarah.", "Sarah"),
        ("Je suis Maëlle.", "Maëlle"),
        ("Ik ben Daan de Vries.", "Daan de Vries"),
        ("Frau Özdemir wartet.", "Özdemir"),
        ("NOMBRE: MARÍA GARCÍA LÓPEZ", "MARÍA GARCÍA LÓPEZ"),
        ("Cognome e nome: ROSSI MARIO", "ROSSI MARIO"),
        ("Signé : Claire LEFEBVRE-MOREAU", "Claire LEFEBVRE-MOREAU"),
        ("Клиентът Иван Петров живее в София.", "Иван Петров"),
    ],
)
def test_a_name_is_found_whole(model, text, name):
    assert [text[start:end] for start, end in model.find(text)] == [name]


@pytest.mark.parametrize(
    "text",
    [
        "", "The committee met on Tuesday.", "Die Rechnung ist bezahlt.", "def total(rows): return sum(rows)",
        "This is Python code.", "This is Debian 12.", "I am French, I am European.", "Ich bin Ingenieur.",
        "Sono Italiano.",
        "Jestem Polakiem.", "Je suis Directeur.", "Eu sou Brasileiro.", "I'm CEO here", "NATO, UNESCO and INTERPOL",
        "SELECT NAME FROM USERS", "PAM and MAX(price)", "'M Options' are off", "lena = tom + anna",
        "Name ........\nAustrian social insurance number", "Authorization: Bearer rubygems",
        "Kenncode siehe Einladung.", "Goedemiddag,", "Czy mogą Państwo sprawdzić?",
        "Frau Präsidentin, Herr Kommissar,", "Signor Presidente, onorevoli colleghi,", "Sr. Presidente, señorías,",
        "Prof. Dr. phil.",
    ],
)  # fmt: skip
def test_a_text_without_names_has_none(model, text):
    assert model.find(text) == []


@pytest.mark.parametrize(("text", "names"), [
    ("Richter Dr. M. und die Zeugin K. sagten aus.", ["M.", "K."]),
    ("Im Urteil steht, der Kläger hätte K. in Wien gesehen.", ["K."]),
    ("K. Schmidt", ["K. Schmidt"]), ("Nach § 5 Abs. 2 S. 1 und Art. 3 BGB gilt das.", []),
    ("Den Herrn N traf Frau B. dort.", ["N", "B."]),
])  # fmt: skip
def test_judgments_name_persons_by_initials(model, text, names):
    assert [text[start:end] for start, end in model.find(text)] == names


@pytest.mark.parametrize(
    "text", ["Στην Αθήνα και στη Νέα Υόρκη", "Стара Загора и Велико Търново", "Η Ευρωπαϊκή Ένωση αποφάσισε."]
)
def test_places_in_greek_and_cyrillic_are_no_names(model, text):
    assert model.find(text) == []


def test_a_name_is_found_wherever_a_window_is_cut(model):
    for shift in range(380, 500, 9):
        text = "and so it goes on " * 40
        text = text[:shift] + " Maria Kowalska " + text[shift:]
        assert any("Kowalska" in text[start:end] for start, end in model.find(text)), shift


@pytest.mark.parametrize("length", [0, 1, 479, 480, 481, 2000])
def test_windows_cover_every_character(length):
    for text in ("a" * length, ("word " * length)[:length]):
        covered = {at for start, end in _windows(text) for at in range(start, end)}
        assert covered == set(range(length))


def test_names_are_found_as_well_as_we_say(model):
    made = [
        case for case in cases(seed=5, rounds=3, held_out=True) if case.variant in ("plain", "csv", "nbsp", "clean")
    ]
    found = evaluate(made, lambda text: [(*name, "person") for name in model.find(text)])
    assert found.by_label["person"].f1 >= 0.85 and found.touched <= 0.03 * found.clean


def test_a_folder_without_a_model_is_said_to_be_none(tmp_path):
    with pytest.raises(RedactionError, match="cannot be loaded"):
        NameModel(tmp_path)
