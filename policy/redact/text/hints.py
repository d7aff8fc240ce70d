"""Guess the countries that a text refers to, from its function words, letters and number prefixes.

The result chooses between kinds of numbers that share a format. It never disables a check. English is no evidence of a
country because it is used everywhere; its words only prevent a false match with another language.
"""

import re
from bisect import bisect_left
from collections.abc import Sequence, Set

# Words that are frequent in one language and rare in the others, without diacritics (see `Reading.folded`). Portuguese
# `com` and `os` are left out: `com` ends most host names, and `os` is a Python module.
_WORDS: dict[str, str] = {
    "bg": "и на за от се да не моят моята ми номер здравейте благодаря казвам аз съм клиент град българия уважаеми "
          "уважаема господин госпожа относно пациент роден родена телефон имейл сметка адрес живее клиентът моля "
          "подпис",
    "cs": "jsem prosim dekuji moje muj dobry den cislo jmenuji bydlim jako nebo ktery ulice ceska cesko zakaznik pani "
          "je vazeny vazena ahoj vec narozen narozena bydli uctu stezuje uvedl zadost jmeno prijmeni na se",
    "da": "jeg og er ikke hedder mit hej tak med paa venlig hilsen kunde gade danmark dansk danske kunden bor min "
          "kaere "
          "vedr fodt klager oplyste borgeren kontonummer navn adresse sagsbehandler en",
    "de": "der die das und ist nicht ich mein meine guten tag bitte danke fur mit unter kunde herr frau deutschland "
          "deutsche strasse german germany liegt wohnhaft geboren sehr geehrte geehrter damen herren betreff patientin "
          "geb klagt wohnt antragsteller versicherte vorname nachname anschrift konto lautet wurde sind nach auf bei "
          "hier noch in es",
    "el": "και το του της η ο μου ειναι με για στο στη κυριος πελατης ευχαριστω ελλαδα σας θεμα αγαπητε αξιοτιμε "
          "ασθενης γεννηθηκε τηλεφωνο κατοικει λογαριασμος διευθυνση ονομα παρακαλω γεια που",
    "en": "the of and to in is for with you your please my are this that it on as at be by from was not have has he "
          "she "
          "we their them could would can me all gave will do if an or i",
    "es": "el los y es mi gracias para por con senor senora calle cliente buenos dias numero soy espana usted del una "
          "estimado estimada asunto paciente nacido nacida reside telefono correo cuenta hola nombre apellidos "
          "domicilio solicitante indico de la un en se",
    "et": "ja on minu tere palun aitah olen eesti ei klient see et oma teema lugupeetud patsient sundinud kaebab konto "
          "elab nimi aadress siin nagu",
    "fi": "ja on minun kiitos hei olen ei puhelin asiakas suomi katu tunnus etta sen aihe hyva potilas syntynyt "
          "valittaa sahkoposti tilinumero asuu nimi osoite moi tassa",
    "fr": "le les et est je mon ma pour avec vous merci bonjour suis monsieur madame client france ne des du une au "
          "objet nee telephone courriel habite cher chere nom prenom adresse votre veuillez compte voila de la un en "
          "par on",
    "hr": "je i moj moja hvala postovani zovem sam na za broj hrvatska klijent ulica se koji predmet pacijent roden "
          "rodena racun stanuje adresi prezime zali molim evo bok",
    "hu": "es az egy vagyok koszonom tisztelt szam hogy nem ugyfel magyarorszag a neve cimem kerem targy beteg "
          "szuletett bankszamla lakcime nev cim szia itt panaszkodik",
    "is": "og er ekki eg min mitt takk godan dag heiti simi islandi vid hja efni kaeri sjuklingur faeddur faedd "
          "netfang "
          "reikningur kvartar nafn heimilisfang vidskiptavinur hae her",
    "it": "il lo gli e sono mio mia grazie per con buongiorno signor signora cliente via italia che della nel una di "
          "oggetto gentile egregio paziente nato nata residente risiede telefono conto cognome indirizzo ciao "
          "richiedente la in un",
    "lt": "ir yra mano aciu laba diena esu numeris lietuva klientas gatve as kad su gerbiamas gerbiamasis pacientas "
          "gimes gime telefonas saskaita vardas pavarde adresas skundziasi labas prasome gyvena",
    "lv": "un ir mans mana paldies labdien mani sauc numurs latvija klients iela es ar par godatais pacients dzimis "
          "dzimusi talrunis konts vards uzvards adrese sudzas ludzu cau dzivo pasts",
    "mt": "u huwa tieghi grazzi bongu jien in numru malta il tal lil suggett ghaziz pazjent twieled twieldet kont isem "
          "kunjom indirizz",
    "nl": "de het een en is mijn ik ben niet dank goedemiddag met voor klant nederland straat aan van u op betreft "
          "geachte heer mevrouw geb telefoon rekening woont naam adres klaagt hier hoi aanvrager groetjes in",
    "no": "jeg og er ikke heter mitt hei takk med kunde norge gate pa til norsk bor vedr kjaere pasient fodt klager "
          "kontonr navn adresse soker saksbehandler en",
    "pl": "jest nie to moj moja dziekuje prosze dzien dobry nazywam sie pan pani klient polska ulica numer oraz w z na "
          "do dotyczy szanowny szanowna pacjent pacjentka ur urodzony urodzona konto imie nazwisko adres mieszka "
          "zglasza czesc wnioskodawca",
    "pt": "o e meu minha obrigado obrigada bom dia chamo para cliente portugal sou numero nao uma em da do "
          "assunto exmo exma utente nascido nascida telefone conta morada reside ola queixa requerente segue de se as",
    "ro": "si este meu mea multumesc buna ziua numesc cu pentru client romania strada sunt nu o la referitor stimate "
          "stimata domn doamna nascut nascuta cont nume prenume locuieste acuza salut solicitantul de in un",
    "sk": "som prosim dakujem moje moj dobry den cislo volam byvam alebo ktory ulica slovensko zakaznik je sa pre vec "
          "vazeny vazena narodeny narodena byva ucet meno priezvisko stazuje ahoj ziadatel poistenec na",
    "sl": "in je moj moja hvala dober dan ime mi stevilka slovenija stranka ulica sem za ni zadeva spostovani rojen "
          "rojena stanuje racun priimek naslov zivjo tozi tukaj na se",
    "sv": "jag och ar inte heter mitt hej tack med kund sverige gata pa till svensk bor det ang basta fodd konto namn "
          "adress klagar handlaggare sokande kommer en",
}  # fmt: skip
# Country names and adjectives. A match is stronger evidence than the words above: `the Polish customer`.
_NAMES: dict[str, str] = {
    "at": "austria austrian osterreich osterreichische autriche oostenrijk",
    "be": "belgium belgian belgie belgique belgien",
    "bg": "bulgaria bulgarian", "ch": "switzerland swiss schweiz suisse svizzera", "cy": "cyprus cypriot κυπρος",
    "cz": "czech czechia", "de": "germany german", "dk": "denmark danish", "ee": "estonia estonian",
    "es": "spain spanish", "fi": "finland finnish", "fr": "france french", "gr": "greece greek",
    "hr": "croatia croatian",
    "hu": "hungary hungarian", "ie": "ireland irish", "is": "iceland icelandic", "it": "italy italian",
    "li": "liechtenstein", "lt": "lithuania lithuanian", "lu": "luxembourg luxemburg", "lv": "latvia latvian",
    "mt": "malta maltese", "nl": "netherlands dutch", "no": "norway norwegian", "pl": "poland polish",
    "pt": "portugal portuguese", "ro": "romania romanian", "se": "sweden swedish", "si": "slovenia slovenian",
    "sk": "slovakia slovak", "gb": "uk british england",
}  # fmt: skip
_SPOKEN_IN: dict[str, tuple[str, ...]] = {
    "bg": ("bg",), "cs": ("cz",), "da": ("dk",), "de": ("de", "at", "ch", "li", "lu"), "el": ("gr", "cy"), "en": (),
    "es": ("es",),
    "et": ("ee",), "fi": ("fi",), "fr": ("fr", "be", "lu", "ch"), "hr": ("hr",), "hu": ("hu",), "is": ("is",),
    "it": ("it", "ch"), "lt": ("lt",), "lv": ("lv",), "mt": ("mt",), "nl": ("nl", "be"), "no": ("no",), "pl": ("pl",),
    "pt": ("pt",), "ro": ("ro",), "sk": ("sk",), "sl": ("si",), "sv": ("se", "fi"),
}  # fmt: skip
# Letters that occur in only one or two languages.
_LETTERS: dict[str, str] = {
    "ł": "pl", "ń": "pl", "ś": "pl", "ź": "pl", "ő": "hu", "ű": "hu", "ř": "cs", "ě": "cs", "ů": "cs", "ľ": "sk",
    "ĺ": "sk", "ŕ": "sk", "ș": "ro", "ț": "ro", "ă": "ro", "ã": "pt", "ß": "de", "þ": "is", "ð": "is", "ħ": "mt",
    "ġ": "mt", "ċ": "mt", "ė": "lt", "ų": "lt", "į": "lt", "ļ": "lv", "ņ": "lv", "ķ": "lv", "ģ": "lv", "ī": "lv",
    "ñ": "es", "đ": "hr", "ъ": "bg", "щ": "bg", "ω": "el", "ς": "el", "ę": "pl", "õ": "et",
}  # fmt: skip
_CALLING = {"30": "gr", "31": "nl", "32": "be", "33": "fr", "34": "es", "36": "hu", "39": "it", "40": "ro", "41": "ch",
            "43": "at", "44": "gb", "45": "dk", "46": "se", "47": "no", "48": "pl", "49": "de", "351": "pt",
            "352": "lu",
            "353": "ie", "354": "is", "356": "mt", "357": "cy", "358": "fi", "359": "bg", "370": "lt", "371": "lv",
            "372": "ee", "385": "hr", "386": "si", "420": "cz", "421": "sk", "423": "li"}  # fmt: skip
_LANGUAGES: dict[str, list[str]] = {}
for _language, _words in _WORDS.items():
    for _word in _words.split():
        _LANGUAGES.setdefault(_word, []).append(_language)
_VOTES = {
    word: tuple((language, (1 if len(word) > 1 else 0.5) / len(languages)) for language in languages)
    for word, languages in _LANGUAGES.items()
}
_ENGLISH = frozenset(_WORDS["en"].split())
_WORD_SET = frozenset(_LANGUAGES)
# Words as short as the pieces of letters in hashes, addresses and names of variables.
_SHORT = 3
_ALONE = {word: re.compile(rf"{word}(?<!\w{word})(?!\w)") for word in _WORD_SET if len(word) <= _SHORT}
_COUNTRY_NAMES = {word: code for code, words in _NAMES.items() for word in words.split()}
_COUNTRY_WORDS = frozenset(_COUNTRY_NAMES)
_TELLING = {
    form: language for letter, language in _LETTERS.items() for form in (letter, letter.upper()) if len(form) == 1
}
_TELLING_LETTER = re.compile(f"[{''.join(_TELLING)}]")
_CALLED = re.compile(r"(?:(?<!\w)\+|(?<![\w.,-])00(?=(?:[ ()./-]{0,3}[0-9]){8}))([3-4][0-9]{1,2})")
_DOMAIN = re.compile(r"@[\w.-]{1,64}\.([a-z]{2})(?![\w-])")
_ACCOUNT = re.compile(r"([A-Z](?<!\w[A-Z])[A-Z])(?:[0-9]{2}[ -]?[0-9A-Z]{4}[ -]?[0-9A-Z]{4}|U?[0-9]{8,12}\b)")
_NEAR = 1000  # characters at the start of a text that are examined
_ENOUGH = 2
_SURE = 0.6  # minimum score of a language in a text with English words: more than one word shared with English gives


def countries_of(text: str, folded: str, words: Sequence[str], starts: Sequence[int]) -> frozenset[str]:
    """Return the countries of the text's most likely languages and those named by its words, numbers and e-mail
    domains.

    ``folded``: the text in lower case without diacritics. ``words``: its words in order. ``starts``: the offset
    of each.
    Only the first 1,000 characters are examined. Returns ISO 3166 codes in lower case.
    """
    if len(text) > _NEAR:
        words = words[: bisect_left(starts, _NEAR)]
    found = _of_languages(text, folded, words)
    if not _COUNTRY_WORDS.isdisjoint(words):
        found.update(_COUNTRY_NAMES[word] for word in _COUNTRY_WORDS.intersection(words))
    found.update(code for code in _codes(text[:_NEAR]) if code in _SHOWN)
    return frozenset(found)


def _of_languages(text: str, folded: str, words: Sequence[str]) -> set[str]:
    """Return the countries of the languages with the most matching words and distinctive letters.

    A single letter counts beside other words of its language only: programs and formulas are full of them.
    """
    found: set[str] = set()
    known = _WORD_SET.intersection(words)
    is_english = not known.isdisjoint(_ENGLISH)
    scores = _votes(known, folded)
    if not text.isascii():
        for letter in set(_TELLING_LETTER.findall(text, 0, _NEAR)):
            scores[_TELLING[letter]] = scores.get(_TELLING[letter], 0) + 1
    if scores:
        best = max(scores.values())
        if best >= 0.5:
            for language, score in scores.items():
                if score * _ENOUGH > best and not (is_english and score < _SURE):
                    found.update(_SPOKEN_IN[language])
    return found


def _codes(head: str) -> list[str]:
    """Return the country codes of bank accounts, phone numbers and e-mail addresses in a text.

    Entries may be empty or not a country code; the caller filters them.
    """
    codes = [code.lower() for code in _ACCOUNT.findall(head)]
    if "+" in head or "00" in head:
        codes += [_CALLING.get(digits) or _CALLING.get(digits[:2], "") for digits in _CALLED.findall(head)]
    if "@" in head:
        codes += _DOMAIN.findall(head)
    return codes


def _votes(known: Set[str], folded: str) -> dict[str, float]:
    """Return a score for each language that has one of the `known` words of a text."""
    said = [word for word in known if len(word) > _SHORT or _stands_alone(word, folded)]
    scores: dict[str, float] = {}
    for word in sorted(said, key=len, reverse=True):
        for language, weight in _VOTES[word]:
            if len(word) > 1 or language in scores:
                scores[language] = scores.get(language, 0) + weight
    return scores


def _stands_alone(word: str, folded: str) -> bool:
    """Return whether a word occurs without letters, digits and `_` beside it, unlike the letters of `a7e0d9`."""
    return _ALONE[word].search(folded, 0, _NEAR) is not None


_SHOWN = frozenset(_CALLING.values())
