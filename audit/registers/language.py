"""Texts for data subjects (GDPR 12(1)): access packages and notices, in English and German.

A language is one `Language`; another is added by one more value in LANGUAGES. The content is the same in all of them.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Language:
    """Headings and sentences by what they say; `{}` takes a figure or a name. `fields`: the parts of a call that may be
    kept; `bases`: GDPR 6(1); `kinds`: personal data that redaction finds, and special categories (GDPR 9(1)); `tools`:
    of transfers (GDPR 44 to 49); `speakers`: roles in a conversation; `places`: where the gateway itself keeps data;
    `registered`: entries of the controller's registers."""

    code: str
    title_access: str
    title_notice: str
    controller: str
    contact: str
    dpo: str
    representative: str
    purposes: str
    legal_basis: str
    categories: str
    recipients: str
    recipient: str
    nobody: str
    periods: str
    metadata: str
    content: str
    content_none: str
    addresses: str
    rights: str
    rights_text: tuple[str, ...]
    complaint: str
    withdrawal: str
    portability: str
    interests_unknown: str
    source: str
    source_unknown: str
    automated: str
    automated_text: str
    automated_systems: str
    transfers: str
    transfer: str
    no_transfer: str
    no_call: str
    transfer_allowed: str
    stored_outside: str
    safeguards: str
    data: str
    record: str
    when: str
    what: str
    value: str
    no_data: str
    unknown: str
    missing: str
    ai_notice: str
    activity: str
    measure: str
    fields: dict[str, str]
    contents: dict[str, str]
    bases: dict[str, str]
    kinds: dict[str, str]
    tools: dict[str, str]
    speakers: dict[str, str]
    places: dict[str, str]
    registered: dict[str, str]

    def basis(self, code: str) -> str:
        return self.bases.get(code, code)

    def field(self, name: str) -> str:
        return self.fields.get(name, name)

    def content_kind(self, kind: str) -> str:
        """What is kept outside of records (`audit.privacy.kept_content`)."""
        return self.contents.get(kind, kind)

    def kind(self, name: str) -> str:
        """A category of data; what the controller calls by a word of its own stays as it is."""
        return self.kinds.get(name, name)

    def tool(self, name: str) -> str:
        """A tool of GDPR 44 to 49, with the reference after a colon, if it has one."""
        basis, _, reference = name.partition(":")
        return self.tools.get(basis, basis) + (f" ({reference})" if reference else "")

    def place(self, name: str) -> str:
        return self.places.get(name, name)

    def entry(self, name: str) -> str:
        """An entry of a register, as `controller.contact` or `activity ID: source`."""
        of, _, what = name.rpartition(": ")
        told = self.registered.get(what, what)
        return f"{self.activity} {of.removeprefix('activity ')}: {told}" if of else told


ENGLISH = Language(
    code="en",
    title_access="What is kept about you",
    title_notice="Information on the processing of personal data",
    controller="Controller",
    contact="Contact",
    dpo="Data protection officer",
    representative="Representative",
    purposes="Why your data are processed (GDPR 15(1)(a))",
    legal_basis="Legal basis",
    categories="Categories of data (GDPR 15(1)(b))",
    recipients="Who received them (GDPR 15(1)(c))",
    recipient="{}, computed in {}; calls: {}",
    nobody="Nobody.",
    periods="How long they are kept (GDPR 15(1)(d))",
    metadata="Records of calls, which hold no personal value: {} days",
    content="Prompts, answers and your identifier, encrypted: {} days",
    content_none="Prompts and answers: not kept",
    addresses="Network addresses of callers whose requests were refused, encrypted: {} days",
    rights="Your rights (GDPR 15(1)(e))",
    rights_text=(
        "You may ask the controller to correct your data (GDPR 16).",
        "You may ask the controller to erase your data (GDPR 17).",
        "You may ask the controller to restrict the processing (GDPR 18).",
        "You may object to the processing where GDPR 21 gives that right.",
    ),
    withdrawal="You may withdraw your consent at any time; what was done before stays lawful (GDPR 7(3), 13(2)(c)).",
    portability="You may ask for the data that you provided in a machine-readable form (GDPR 20).",
    interests_unknown="The legitimate interests pursued (GDPR 13(1)(d)) are not registered; ask the controller.",
    complaint="You may lodge a complaint with a supervisory authority (GDPR 15(1)(f), 77).",
    source="Where the data come from (GDPR 15(1)(g))",
    source_unknown="The controller has not registered a source. The data came with the application's calls.",
    automated="Automated decisions (GDPR 15(1)(h))",
    automated_text="This record does not show whether the application takes automated decisions: ask the controller.",
    automated_systems="The calls are part of these registered AI systems: {}.",
    transfers="Transfers to third countries and their safeguards (GDPR 15(2))",
    transfer="computed in {}, stored in {}, on the basis of {}",
    no_transfer="None: the calls stayed within the European Economic Area.",
    no_call="No call was sent to a backend.",
    transfer_allowed="The policy allows transfers on the basis of {}; no call on record rests on it.",
    stored_outside="{} is kept in {}, outside the European Economic Area.",
    safeguards="Safeguard: {}, {}: {}",
    data="The data",
    record="record",
    when="when (UTC)",
    what="what",
    value="value",
    no_data="No value is kept.",
    unknown="not registered; ask the controller",
    missing="The controller's registers lack: {}",
    ai_notice="Answers are generated by an AI system; each answer says so in a header (AI Act 50).",
    activity="Activity",
    measure="size: {} bytes; SHA-256: {}",
    contents={
        "file_line": "line of a file of requests",
        "file_result": "result of such a line",
        "response": "answer that is kept, and what was asked",
    },
    fields={
        "input": "what was sent (prompt)",
        "input_original": "what was sent, before redaction: its size and hash",
        "output": "what was answered",
        "activations": "commitment of the answer to the model that gave it",
        "subject": "your identifier",
        "actor": "who acted",
        "client_ip": "network address of the caller",
        "client_request_id": "identifier of the request, as the caller gave it",
        "findings": "what redaction found",
    },
    bases={
        "consent": "consent (GDPR 6(1)(a))",
        "contract": "contract (GDPR 6(1)(b))",
        "legal_obligation": "legal obligation (GDPR 6(1)(c))",
        "vital_interests": "vital interests (GDPR 6(1)(d))",
        "public_task": "public task (GDPR 6(1)(e))",
        "legitimate_interests": "legitimate interests (GDPR 6(1)(f))",
    },
    kinds={
        "address": "postal address",
        "bic": "bank identifier (BIC)",
        "card": "payment card",
        "date_of_birth": "date of birth",
        "email": "e-mail address",
        "iban": "bank account (IBAN)",
        "imei": "device number (IMEI)",
        "ip": "IP address",
        "mac": "device address (MAC)",
        "national_id": "identification number",
        "person": "name of a person",
        "phone": "telephone number",
        "plate": "number plate",
        "secret": "password or access key",
        "vat": "tax number",
        "biometric": "biometric data (GDPR 9(1))",
        "racial_or_ethnic_origin": "racial or ethnic origin (GDPR 9(1))",
        "genetic": "genetic data (GDPR 9(1))",
        "health": "health (GDPR 9(1))",
        "political_opinions": "political opinions (GDPR 9(1))",
        "religious_or_philosophical_beliefs": "religious or philosophical beliefs (GDPR 9(1))",
        "sex_life_or_orientation": "sex life or sexual orientation (GDPR 9(1))",
        "special_category": "special categories of data (GDPR 9(1))",
        "trade_union_membership": "trade union membership (GDPR 9(1))",
    },
    tools={
        "adequacy": "adequacy decision (GDPR 45)",
        "scc": "standard contractual clauses (GDPR 46(2)(c))",
        "bcr": "binding corporate rules (GDPR 47)",
        "derogation": "derogation (GDPR 49)",
    },
    speakers={"user": "user", "assistant": "assistant", "system": "system", "developer": "developer", "tool": "tool"},
    places={"the record": "The record", "spans": "Telemetry (spans)"},
    registered={
        "controller.name": "name of the controller",
        "controller.contact": "contact of the controller",
        "controller.dpo": "data protection officer",
        "purpose": "purpose",
        "source": "source of the data",
    },
)

GERMAN = Language(
    code="de",
    title_access="Was über Sie gespeichert ist",
    title_notice="Informationen zur Verarbeitung personenbezogener Daten",
    controller="Verantwortlicher",
    contact="Kontakt",
    dpo="Datenschutzbeauftragte Person",
    representative="Vertreter",
    purposes="Zwecke der Verarbeitung (Art. 15 Abs. 1 Buchst. a DSGVO)",
    legal_basis="Rechtsgrundlage",
    categories="Kategorien von Daten (Art. 15 Abs. 1 Buchst. b DSGVO)",
    recipients="Empfänger (Art. 15 Abs. 1 Buchst. c DSGVO)",
    recipient="{}, verarbeitet in {}; Aufrufe: {}",
    nobody="Niemand.",
    periods="Dauer der Speicherung (Art. 15 Abs. 1 Buchst. d DSGVO)",
    metadata="Protokolle der Aufrufe, die keinen personenbezogenen Wert enthalten: {} Tage",
    content="Eingaben, Antworten und Ihre Kennung, verschlüsselt: {} Tage",
    content_none="Eingaben und Antworten: nicht gespeichert",
    addresses="Netzadressen von Aufrufern, deren Anfragen abgewiesen wurden, verschlüsselt: {} Tage",
    rights="Ihre Rechte (Art. 15 Abs. 1 Buchst. e DSGVO)",
    rights_text=(
        "Sie können vom Verantwortlichen die Berichtigung Ihrer Daten verlangen (Art. 16 DSGVO).",
        "Sie können vom Verantwortlichen die Löschung Ihrer Daten verlangen (Art. 17 DSGVO).",
        "Sie können vom Verantwortlichen die Einschränkung der Verarbeitung verlangen (Art. 18 DSGVO).",
        "Sie können der Verarbeitung widersprechen, soweit Art. 21 DSGVO dieses Recht gibt.",
    ),
    withdrawal="Sie können Ihre Einwilligung jederzeit widerrufen; was vorher geschah, bleibt rechtmäßig (Art. 7 "
    "Abs. 3, Art. 13 Abs. 2 Buchst. c DSGVO).",
    portability="Sie können die von Ihnen bereitgestellten Daten in maschinenlesbarer Form verlangen (Art. 20 DSGVO).",
    interests_unknown="Die berechtigten Interessen (Art. 13 Abs. 1 Buchst. d DSGVO) sind nicht eingetragen; fragen Sie "
    "den Verantwortlichen.",
    complaint="Sie können sich bei einer Aufsichtsbehörde beschweren (Art. 15 Abs. 1 Buchst. f, Art. 77 DSGVO).",
    source="Herkunft der Daten (Art. 15 Abs. 1 Buchst. g DSGVO)",
    source_unknown="Der Verantwortliche hat keine Herkunft eingetragen. Die Daten kamen mit Aufrufen der Anwendung.",
    automated="Automatisierte Entscheidungen (Art. 15 Abs. 1 Buchst. h DSGVO)",
    automated_text="Ob die Anwendung automatisiert entscheidet, geht aus dem Protokoll nicht hervor: "
    "fragen Sie den Verantwortlichen.",
    automated_systems="Die Aufrufe gehören zu diesen eingetragenen KI-Systemen: {}.",
    transfers="Übermittlung in Drittländer und Garantien (Art. 15 Abs. 2 DSGVO)",
    transfer="verarbeitet in {}, gespeichert in {}, auf der Grundlage von {}",
    no_transfer="Keine: die Aufrufe blieben im Europäischen Wirtschaftsraum.",
    no_call="Kein Aufruf wurde an ein Backend gesendet.",
    transfer_allowed="Die Richtlinie lässt Übermittlungen auf der Grundlage von {} zu; kein Aufruf im Protokoll "
    "stützt sich darauf.",
    stored_outside="{} wird in {} gespeichert, außerhalb des Europäischen Wirtschaftsraums.",
    safeguards="Garantie: {}, {}: {}",
    data="Die Daten",
    record="Eintrag",
    when="Zeitpunkt (UTC)",
    what="Angabe",
    value="Wert",
    no_data="Es ist kein Wert gespeichert.",
    unknown="nicht eingetragen; fragen Sie den Verantwortlichen",
    missing="In den Verzeichnissen des Verantwortlichen fehlt: {}",
    ai_notice="Antworten werden von einem KI-System erzeugt; jede Antwort trägt einen Vermerk darüber in einem Header "
    "(Art. 50 KI-Verordnung).",
    activity="Verarbeitungstätigkeit",
    measure="Größe: {} Byte; SHA-256: {}",
    contents={
        "file_line": "Zeile einer Datei mit Anfragen",
        "file_result": "Ergebnis einer solchen Zeile",
        "response": "aufbewahrte Antwort und was gefragt wurde",
    },
    fields={
        "input": "was gesendet wurde (Eingabe)",
        "input_original": "was vor der Schwärzung gesendet wurde: Größe und Prüfsumme",
        "output": "was geantwortet wurde",
        "activations": "Festlegung der Antwort auf das Modell, das sie gab",
        "subject": "Ihre Kennung",
        "actor": "wer gehandelt hat",
        "client_ip": "Netzadresse des Aufrufers",
        "client_request_id": "Kennung der Anfrage, wie der Aufrufer sie angab",
        "findings": "was die Schwärzung fand",
    },
    bases={
        "consent": "Einwilligung (Art. 6 Abs. 1 Buchst. a DSGVO)",
        "contract": "Vertrag (Art. 6 Abs. 1 Buchst. b DSGVO)",
        "legal_obligation": "rechtliche Verpflichtung (Art. 6 Abs. 1 Buchst. c DSGVO)",
        "vital_interests": "lebenswichtige Interessen (Art. 6 Abs. 1 Buchst. d DSGVO)",
        "public_task": "Aufgabe im öffentlichen Interesse (Art. 6 Abs. 1 Buchst. e DSGVO)",
        "legitimate_interests": "berechtigte Interessen (Art. 6 Abs. 1 Buchst. f DSGVO)",
    },
    kinds={
        "address": "Postanschrift",
        "bic": "Bankleitzahl (BIC)",
        "card": "Zahlungskarte",
        "date_of_birth": "Geburtsdatum",
        "email": "E-Mail-Adresse",
        "iban": "Bankverbindung (IBAN)",
        "imei": "Gerätenummer (IMEI)",
        "ip": "IP-Adresse",
        "mac": "Geräteadresse (MAC)",
        "national_id": "Identifikationsnummer",
        "person": "Name einer Person",
        "phone": "Telefonnummer",
        "plate": "Kraftfahrzeugkennzeichen",
        "secret": "Passwort oder Zugangsschlüssel",
        "vat": "Steuernummer",
        "biometric": "biometrische Daten (Art. 9 Abs. 1 DSGVO)",
        "racial_or_ethnic_origin": "rassische oder ethnische Herkunft (Art. 9 Abs. 1 DSGVO)",
        "genetic": "genetische Daten (Art. 9 Abs. 1 DSGVO)",
        "health": "Gesundheit (Art. 9 Abs. 1 DSGVO)",
        "political_opinions": "politische Meinungen (Art. 9 Abs. 1 DSGVO)",
        "religious_or_philosophical_beliefs": "religiöse oder weltanschauliche Überzeugungen (Art. 9 Abs. 1 DSGVO)",
        "sex_life_or_orientation": "Sexualleben oder sexuelle Orientierung (Art. 9 Abs. 1 DSGVO)",
        "special_category": "besondere Kategorien von Daten (Art. 9 Abs. 1 DSGVO)",
        "trade_union_membership": "Gewerkschaftszugehörigkeit (Art. 9 Abs. 1 DSGVO)",
    },
    tools={
        "adequacy": "Angemessenheitsbeschluss (Art. 45 DSGVO)",
        "scc": "Standarddatenschutzklauseln (Art. 46 Abs. 2 Buchst. c DSGVO)",
        "bcr": "verbindliche interne Datenschutzvorschriften (Art. 47 DSGVO)",
        "derogation": "Ausnahme (Art. 49 DSGVO)",
    },
    speakers={
        "user": "Nutzer",
        "assistant": "Assistent",
        "system": "Systemvorgabe",
        "developer": "Entwicklervorgabe",
        "tool": "Werkzeug",
    },
    places={"the record": "Das Protokoll der Aufrufe", "spans": "Die Telemetrie (Spans)"},
    registered={
        "controller.name": "Name des Verantwortlichen",
        "controller.contact": "Kontakt des Verantwortlichen",
        "controller.dpo": "Datenschutzbeauftragte Person",
        "purpose": "Zweck",
        "source": "Herkunft der Daten",
    },
)

LANGUAGES = {one.code: one for one in (ENGLISH, GERMAN)}
