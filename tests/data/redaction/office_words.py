"""Words of the office set (`office`): what each number is called by clerks and by programs, openings, clean texts.

Names are those of the number's country in each of its official languages, then English, French and German ones, then
columns and members as programs call them.
"""

# kind: (language of its country's letters, names in prose, names in programs)
CALLED: dict[str, tuple[str, str, str]] = {
    "at_svnr": ("de-AT", "Sozialversicherungsnummer|SV-Nummer|SVNR|Vers.-Nr.|Versicherungsnr.|Austrian social security "
                         "no.|numéro de sécurité sociale autrichien",
                         "svnr|sv_nummer|sozialversicherungsnummer|versicherungsNummer|at_svnr"),
    "be_nn": ("nl-BE", "Rijksregisternummer|INSZ-nummer|NISS|numéro national|numéro de registre "
                       "national|Nationalregisternummer|RRN|Belgian national number|national register number",
                       "rijksregisternummer|niss|insz|numero_national|nationalRegisterNumber|rrn|be_nn"),
    "bg_egn": ("bg", "ЕГН|Единен граждански номер|ЕГН на пациента|EGN|Bulgarian personal number|Uniform civil number",
    "egn|EGN|egn_number|bg_egn|clientEgn"),
    "ch_ahv": ("de-CH", "AHV-Nummer|AHVN13|numéro AVS|numero AVS|N° AVS|Sozialversicherungsnummer|Swiss social "
                        "security number|OASI no.", "ahv|ahv_nr|ahvNummer|avs_number|navs13|ahvn13|ch_ahv"),
    "cy_tic": ("el-CY", "Α.Φ.Τ.|Αριθμός Φορολογικής Ταυτότητας|TIC|ΑΦΤ|Cyprus tax number|tax identification code (TIC)",
    "tic|cy_tic|tax_id|taxIdentificationCode"),
    "cy_id": ("el-CY", "Αριθμός Ταυτότητας|Α.Δ.Τ.|δελτίο ταυτότητας|αρ. ταυτότητας|Cypriot ID card|Cyprus identity "
                       "card no.", "cy_id|arithmos_taftotitas|identity_card"),
    "cz_rc": ("cs", "rodné číslo|r.č.|RČ|rod. č.|Rodné číslo pacienta|Czech birth number|birth number",
    "rodne_cislo|rc|rodneCislo|birth_number|cz_rc"),
    "de_idnr": ("de", "Steuer-ID|Steuerliche IdNr.|Steuer-Identifikationsnummer|IdNr|Identifikationsnummer|TIN|German "
                      "tax identification number|numéro fiscal allemand",
                      "steuer_id|steuerId|steueridentifikationsnummer|idnr|tax_id|steuerliche_id|tin"),
    "de_rvnr": ("de", "Rentenversicherungsnummer|RV-Nr.|SV-Nummer|Sozialversicherungsnr.|Versicherungsnummer|German "
                      "pension number|DRV-Nummer", "rvnr|rentenversicherungsnummer|sv_nummer|sozialversicherungsnummer|"
                                                   "rv_nr|rentenversicherungsNr"),
    "de_kvnr": ("de", "Krankenversichertennummer|KVNR|Versichertennummer|Versicherten-Nr.|KV-Nr.|Krankenkassennr.|Germa"
                      "n health insurance number|eGK-Nr.", "kvnr|versichertennummer|versicherten_nr|krankenversicherten"
                                                           "nummer|healthInsuranceNumber|kv_nr"),
    "de_id": ("de", "Personalausweisnummer|Ausweisnr.|Personalausweis Nr.|Reisepass-Nr.|Perso-Nr.|Ausweis|German ID "
                    "card", "ausweisnummer|personalausweis_nr|ausweisNr|id_card_number|document_number|passport_no"),
    "dk_cpr": ("da", "CPR-nummer|CPR-nr.|cpr|personnummer|CPR|Danish personal number|civil registration number",
    "cpr|cpr_nummer|cprNumber|cpr_nr|personnummer|dk_cpr"),
    "ee_ik": ("et", "isikukood|Isikukoodi|IK|isiku kood|Estonian ID code|personal identification code|личный код",
    "isikukood|isiku_kood|personal_code|isikukoodNr|ee_ik"),
    "es_dni": ("es", "DNI|D.N.I.|DNI/NIF|NIF|documento nacional de identidad|DNI del paciente|Spanish DNI|nº de DNI",
    "dni|nif|dni_nif|numero_dni|dniCliente|es_dni"),
    "es_nie": ("es", "NIE|N.I.E.|número de identidad de extranjero|NIE del solicitante|Spanish NIE|nº NIE",
    "nie|numero_nie|nieNumber|es_nie|nif_nie"),
    "fi_hetu": ("fi", "henkilötunnus|Henkilötunnuksesi|HETU|hetu|personbeteckning|sotu|Finnish personal identity "
                      "code|Finnish social security number", "hetu|henkilotunnus|henkiloTunnus|personbeteckning|ssn|fi_"
                      "hetu"),
    "fr_nir": ("fr", "numéro de sécurité sociale|N° Sécu|n° de sécurité sociale|NIR|N° INSEE|n° d'assuré social|numéro "
                     "d'immatriculation|French social security no.",
                     "nir|numero_secu|numeroSecuriteSociale|secu|num_secu|nss|fr_nir"),
    "fr_spi": ("fr", "numéro fiscal|N° fiscal|numéro SPI|référence fiscale|numéro fiscal de référence|identifiant "
                     "fiscal|French tax number", "numero_fiscal|spi|numeroFiscal|nif|tax_number|fr_spi"),
    "gr_amka": ("el", "ΑΜΚΑ|Α.Μ.Κ.Α.|Αριθμός Μητρώου Κοινωνικής Ασφάλισης|ΑΜΚΑ ασθενούς|AMKA|Greek social security "
                      "number", "amka|AMKA|amka_number|gr_amka|patientAmka"),
    "gr_afm": ("el", "ΑΦΜ|Α.Φ.Μ.|Αριθμός Φορολογικού Μητρώου|ΑΦΜ πελάτη|AFM|Greek tax number",
    "afm|AFM|afm_number|gr_afm|customerAfm"),
    "hr_oib": ("hr", "OIB|Osobni identifikacijski broj|OIB stranke|osobni identifikacijski broj (OIB)|Croatian "
                     "personal identification number", "oib|OIB|oib_broj|oibStranke|hr_oib"),
    "hu_taj": ("hu", "TAJ-szám|TAJ szám|TAJ|TAJ-száma|társadalombiztosítási azonosító jel|Hungarian social security "
                     "number|TAJ number", "taj|taj_szam|tajszam|tajNumber|hu_taj"),
    "hu_tax": ("hu", "adóazonosító jel|Adóazonosító|adóazonosító jele|adóazonosító szám|adószám|Hungarian tax ID",
    "adoazonosito|adoazonosito_jel|adoAzonosito|tax_id|hu_tax"),
    "hu_szsz": ("hu", "személyi szám|személyi azonosító|személyi azonosító szám|Hungarian personal identification "
                      "number", "szemelyi_szam|szemelyi_azonosito|szemelyiSzam"),
    "ie_pps": ("en-IE", "PPS number|PPSN|PPS No|PPS no.|Personal Public Service number|uimhir PSP|Uimhir PSP|Irish "
                        "PPSN", "pps|ppsn|pps_number|ppsNumber|ie_pps"),
    "is_kt": ("is", "kennitala|kt.|Kennitala|kennitölu|kt|Icelandic ID number|Icelandic kennitala",
    "kennitala|kt|kennitala_nr|kennitalaNumber|is_kt"),
    "it_cf": ("it", "codice fiscale|C.F.|CF|Cod. Fiscale|cod. fisc.|codice fiscale del paziente|Italian tax "
                    "code|Steuernummer (codice fiscale)", "codice_fiscale|cf|codiceFiscale|cod_fiscale|fiscal_code|it_c"
                                                          "f"),
    "li_peid": ("de-LI", "PEID|PEID-Nr.|PEID-Nummer|Personenidentifikationsnummer|Personenidentifikations-Nr.|Personen-"
                         "ID|Personenident.-Nr.|Personennummer|Liechtenstein personal number|Liechtenstein "
                         "PEID|personal identification number (PEID)|numéro PEID|numéro d'identification personnelle",
                         "peid|peid_nr|peidNummer|personenidentifikationsnummer|li_peid|PEID_NO|personal_no"),
    "li_ahv": ("de-LI", "AHV-Nummer|AHV-Nr.|AHVN13", "ahv|ahv_nr|li_ahv"),
    "lt_ak": ("lt", "asmens kodas|Asmens kodą|a.k.|asmens kodas (a.k.)|asm. kodas|Lithuanian personal code|personal "
                    "code", "asmens_kodas|asmensKodas|ak|personal_code|lt_ak"),
    "lu_nin": ("fr-LU", "matricule|numéro de matricule|Matricule nationale|n° "
                        "matricule|Matrikelnummer|Sozialversicherungsnummer|Luxembourg matricule|numéro "
                        "d'identification national|13-digit national ID",
                        "matricule|numero_matricule|matriculeNational|lu_matricule|national_id"),
    "lv_pk": ("lv", "personas kods|p.k.|personas kodu|Personas kods|pers. kods|Latvian personal code|personal "
                    "code|персональный код", "personas_kods|personasKods|pk|personal_code|lv_pk"),
    "mt_id": ("mt", "ID card no.|karta tal-identità|numru tal-karta tal-identità|Nru. tal-ID|identity card "
                    "number|numru tal-identità|Malta ID card|KI nru.",
                    "id_card|id_card_no|idCard|karta_identita|mt_id|identityCardNumber"),
    "nl_bsn": ("nl", "BSN|burgerservicenummer|BSN-nummer|bsn nr.|Burgerservicenummer (BSN)|sofinummer|Dutch "
                     "BSN|citizen service number", "bsn|burgerservicenummer|bsn_nummer|bsnNumber|nl_bsn"),
    "no_fnr": ("no", "fødselsnummer|Fødselsnr.|fnr|personnummer|fødsels- og personnummer|fødselsnummer (11 "
                     "siffer)|Norwegian national ID|Norwegian birth number",
                     "fodselsnummer|fnr|fodselsNummer|personnummer|no_fnr"),
    "pl_pesel": ("pl", "PESEL|nr PESEL|numer PESEL|PESEL pacjenta|numerem PESEL|Polish national identification "
                       "number|Polish PESEL", "pesel|nr_pesel|peselNumber|PESEL|pl_pesel"),
    "pl_nip": ("pl", "NIP|nr NIP|NIP nabywcy|numer NIP|numer identyfikacji podatkowej|Polish tax ID|Polish tax number",
    "nip|nr_nip|nipNumber|tax_id|pl_nip"),
    "pt_nif": ("pt", "NIF|contribuinte|n.º contribuinte|número de contribuinte|nº fiscal|NIF do cliente|Portuguese tax "
                     "number|número de identificação fiscal",
                     "nif|contribuinte|numero_contribuinte|nifCliente|tax_number|pt_nif"),
    "pt_cc": ("pt", "Cartão de Cidadão|CC|nº do cartão de cidadão|cartão de cidadão n.º|Cartão Cidadão|Portuguese "
                    "citizen card|citizen card number", "cartao_cidadao|cc|numero_cc|cartaoCidadao|citizen_card"),
    "ro_cnp": ("ro", "CNP|cod numeric personal|codul numeric personal|CNP-ul|CNP pacient|Romanian personal code|C.N.P.",
    "cnp|CNP|cod_numeric_personal|cnpClient|ro_cnp"),
    "se_pnr": ("sv", "personnummer|pers.nr|Personnr|personnumret|pnr|svenskt personnummer|Swedish personal "
                     "number|personal identity number", "personnummer|pnr|personNummer|person_nr|se_pnr"),
    "si_emso": ("sl", "EMŠO|EMŠO številka|enotna matična številka|EMSO|matična številka občana|Slovenian personal "
                      "number", "emso|EMSO|emsoStevilka|maticna_stevilka|si_emso"),
    "si_tax": ("sl", "davčna številka|davčna št.|DŠ|davčno številko|davčna številka stranke|Slovenian tax number|ID za "
                     "DDV", "davcna_stevilka|davcna|davcnaStevilka|tax_number|si_tax"),
    "sk_rc": ("sk", "rodné číslo|r. č.|RČ|rod. číslo|rodné číslo poistenca|Slovak birth number|birth number",
    "rodne_cislo|rc|rodneCislo|birth_number|sk_rc"),
    "gb_nino": ("en", "National Insurance number|NI number|NINO|N.I. number|NI no.|National Insurance No",
    "nino|ni_number|national_insurance|niNumber|nationalInsuranceNumber"),
    "gb_nhs": ("en", "NHS number|NHS no|NHS No.|NHS Number", "nhs|nhs_number|nhsNumber|nhs_no"),
    "us_ssn": ("en", "SSN|Social Security Number|social security no.|US SSN",
    "ssn|social_security_number|socialSecurityNumber|us_ssn"),
}  # fmt: skip

# Language: (letter, chat, note, contact line), in a clerk's style: the number stands where it stands in files.
PROSE: dict[str, tuple[str, ...]] = {
    "bg": ("Относно: {called} {id}\nУважаеми господине, {name} живее на адрес {address}.",
    "здрасти, пратих ли ти {called}? ето: {id}", "Пациент {name}, роден на {dob}, {called}: {id}. Оплаква се от болки.",
    "Телефон: {phone}\nИмейл: {email}\nБанкова сметка: {iban}"),
    "cs": ("Věc: {called} {id}\nVážený pane, paní {name} bydlí na adrese {address}.",
    "ahoj, tady je to {called} co jsi chtěl: {id}", "Pacient {name}, narozen {dob}, {called}: {id}. Stěžuje si na "
                                                    "bolest.", "Telefon: {phone}\nE-mail: {email}\nČíslo účtu: {iban}"),
    "da": ("Vedr.: {called} {id}\nKære sagsbehandler, {name} bor på {address}.",
    "hej, her er {called}: {id} som du bad om", "Patient {name}, født {dob}, {called}: {id}. Klager over smerter.",
    "Telefon: {phone}\nE-mail: {email}\nKontonummer: {iban}"),
    "de": ("Betreff: {called} {id}\nSehr geehrte Damen und Herren, {name} wohnt jetzt {address}.",
    "hi, hier noch {called} von meiner Frau: {id} lg", "Patientin {name}, geb. {dob}, {called}: {id}. Klagt über "
                                                       "Schmerzen.",
                                                       "Telefon: {phone}\nE-Mail: {email}\nKonto: {iban}\nUSt-IdNr.: "
                                                       "{vat}", "Bitte {id} als {called} eintragen, danke."),
    "el": ("Θέμα: {called} {id}\nΑξιότιμε κύριε, ο/η {name} κατοικεί {address}.",
    "γεια, το {called} που ζήτησες είναι {id}", "Ασθενής {name}, γεννήθηκε {dob}, {called}: {id}. Παραπονιέται για "
                                                "πόνο.", "Τηλέφωνο: {phone}\nEmail: {email}\nΛογαριασμός: {iban}"),
    "en": ("Re: {called} {id}\nDear Sir or Madam, {name} now lives at {address}.",
    "hey can you update the file, {called} should be {id} not the old one",
    "Pt {name}, DOB {dob}, {called}: {id}. Presents with chest pain.",
    "Phone: {phone}\nEmail: {email}\nIBAN: {iban}\nCard: {card}",
    "We could not match {id}, which you entered as {called}."),
    "es": ("Asunto: {called} {id}\nEstimado señor: {name} reside en {address}.",
    "hola, te paso el {called}: {id} un saludo", "Paciente {name}, nacido el {dob}, {called}: {id}. Refiere dolor.",
    "Teléfono: {phone}\nCorreo: {email}\nCuenta: {iban}"),
    "et": ("Teema: {called} {id}\nLugupeetud ametnik, {name} elab nüüd mujal.",
    "tere, siin on {called}: {id} nagu lubasin", "Patsient {name}, sündinud {dob}, {called}: {id}. Kaebab valu.",
    "Telefon: {phone}\nE-post: {email}\nKonto: {iban}"),
    "fi": ("Aihe: {called} {id}\nHyvä vastaanottaja, {name} asuu osoitteessa {address}.",
    "moi, tässä se {called}: {id} mitä kysyit", "Potilas {name}, syntynyt {dob}, {called}: {id}. Valittaa kipua.",
    "Puhelin: {phone}\nSähköposti: {email}\nTilinumero: {iban}"),
    "fr": ("Objet : {called} {id}\nMadame, Monsieur, {name} habite désormais {address}.",
    "coucou, voilà le {called} que tu voulais : {id} bises", "Patient {name}, né le {dob}, {called} : {id}. Se plaint "
    "de douleurs.", "Téléphone : {phone}\nCourriel : {email}\nRIB : {iban}\nTVA : {vat}",
    "Merci d'enregistrer {id} comme {called}."),
    "hr": ("Predmet: {called} {id}\nPoštovani, {name} stanuje na adresi {address}.",
    "bok, evo {called} što si tražio: {id}", "Pacijent {name}, rođen {dob}, {called}: {id}. Žali se na bol.",
    "Telefon: {phone}\nE-pošta: {email}\nRačun: {iban}"),
    "hu": ("Tárgy: {called} {id}\nTisztelt Hölgyem, {name} lakcíme {address}.",
    "szia, itt a {called}: {id} amit kértél", "{name} beteg, született {dob}, {called}: {id}. Fájdalomra panaszkodik.",
    "Telefon: {phone}\nE-mail: {email}\nBankszámla: {iban}"),
    "is": ("Efni: {called} {id}\nKæri viðtakandi, {name} er flutt.", "hæ, hér er {called}: {id} sem þú baðst um",
    "Sjúklingur {name}, fædd {dob}, {called}: {id}. Kvartar um verki.",
    "Sími: {phone}\nNetfang: {email}\nReikningur: {iban}"),
    "it": ("Oggetto: {called} {id}\nGentile signora, {name} risiede in {address}.",
    "ciao, ti mando il {called}: {id} grazie", "Paziente {name}, nato il {dob}, {called}: {id}. Lamenta dolore.",
    "Telefono: {phone}\nE-mail: {email}\nIBAN: {iban}\nP.IVA: {vat}"),
    "lt": ("Dėl: {called} {id}\nGerbiamasis, {name} persikėlė.", "labas, štai {called}: {id} kurio prašei",
    "Pacientas {name}, gimęs {dob}, {called}: {id}. Skundžiasi skausmu.",
    "Telefonas: {phone}\nEl. paštas: {email}\nSąskaita: {iban}"),
    "lv": ("Par: {called} {id}\nGodātais kungs, {name} ir pārcēlusies.", "čau, te ir {called}: {id} ko prasīji",
    "Pacients {name}, dzimis {dob}, {called}: {id}. Sūdzas par sāpēm.",
    "Tālrunis: {phone}\nE-pasts: {email}\nKonts: {iban}"),
    "mt": ("Suġġett: {called} {id}\nGħażiż Sinjur, {name} bidel l-indirizz.", "hello, dan hu {called}: {id} li tlabt",
    "Pazjent {name}, twieled {dob}, {called}: {id}. Għandu uġigħ.", "Telefon: {phone}\nEmail: {email}\nKont: {iban}"),
    "nl": ("Betreft: {called} {id}\nGeachte heer, {name} woont nu op {address}.",
    "hoi, hier is het {called}: {id} groetjes", "Patiënt {name}, geb. {dob}, {called}: {id}. Klaagt over pijn.",
    "Telefoon: {phone}\nE-mail: {email}\nRekening: {iban}\nBTW: {vat}"),
    "no": ("Vedr.: {called} {id}\nKjære saksbehandler, {name} bor i {address}.",
    "hei, her er {called}: {id} som du spurte om", "Pasient {name}, født {dob}, {called}: {id}. Klager over smerter.",
    "Telefon: {phone}\nE-post: {email}\nKontonr.: {iban}"),
    "pl": ("Dotyczy: {called} {id}\nSzanowny Panie, {name} mieszka: {address}.",
    "cześć, przesyłam {called}: {id} pozdrawiam", "Pacjent {name}, ur. {dob}, {called}: {id}. Zgłasza ból.",
    "Telefon: {phone}\nE-mail: {email}\nKonto: {iban}"),
    "pt": ("Assunto: {called} {id}\nExmo. Senhor, {name} reside em {address}.", "olá, segue o {called}: {id} obrigado",
    "Utente {name}, nascido a {dob}, {called}: {id}. Queixa-se de dores.",
    "Telefone: {phone}\nEmail: {email}\nConta: {iban}"),
    "ro": ("Referitor la: {called} {id}\nStimate domn, {name} locuiește în {address}.",
    "salut, uite {called}: {id} mersi", "Pacient {name}, născut la {dob}, {called}: {id}. Acuză dureri.",
    "Telefon: {phone}\nE-mail: {email}\nCont: {iban}"),
    "sk": ("Vec: {called} {id}\nVážená pani, {name} býva na adrese {address}.", "ahoj, tu je to {called}: {id} vďaka",
    "Pacient {name}, narodený {dob}, {called}: {id}. Sťažuje sa na bolesť.",
    "Telefón: {phone}\nE-mail: {email}\nÚčet: {iban}"),
    "sl": ("Zadeva: {called} {id}\nSpoštovani, {name} stanuje na naslovu {address}.",
    "živjo, tukaj je {called}: {id} lp", "Pacient {name}, rojen {dob}, {called}: {id}. Toži za bolečino.",
    "Telefon: {phone}\nE-pošta: {email}\nRačun: {iban}"),
    "sv": ("Ang.: {called} {id}\nBästa handläggare, {name} bor på {address}.",
    "hej, här kommer {called}: {id} som du ville ha", "Patient {name}, född {dob}, {called}: {id}. Klagar över smärta.",
    "Telefon: {phone}\nE-post: {email}\nKonto: {iban}"),
}  # fmt: skip

# {called}: a name in prose, {key}: one in programs.
MACHINE = (
    '{{"event":"kyc.check","ts":"2026-11-03T09:12:44Z","subject":{{"{key}":"{id}","phone_number":"{phone}","ip_address"'
    ':"{ip}"}}}}',
    '{{\n  "name": "{name}",\n  "{key}": "{id}",\n  "date_of_birth": "{dob}",\n  "iban": "{iban}"\n}}',
    'name,{key},email,phone\n"{name}",{id},{email},{phone}\n',
    'customer_id;{key};iban;created_at\n1001;{id};{iban};2026-11-03\n1002;;;2026-11-04\n',
    '"row","{key}","card_number"\n"1","{id}","{card}"\n',
    "COPY public.people (id, {key}, email) FROM stdin;\n42\t{id}\t{email}\n\\.\n",
    "INSERT INTO `person` (`{key}`, `iban`, `dob`) VALUES ('{id}','{iban}','{dob}');",
    "SELECT * FROM person WHERE {key} = '{id}' AND email = '{email}';",
    "{called} ______ {id} ______\nTelephone ______ {phone} ______\nSignature ______",
    "{called}\n{id}\n\nIBAN\n{iban}\n\nE-mail\n{email}",
    "[TICKET #{n5}] user reports login problem\n{called}: {id}\ncallback: {phone}\nassigned to: tier2",
    "2026-11-03 09:12:44.103 DEBUG [http-4] c.a.PersonService - lookup {key}={id} from {ip} took 12ms",
    '<input type="text" name="{key}" value="{id}">\n<input type="tel" name="phone" value="{phone}">',
    '<ns:Person><ns:{key}>{id}</ns:{key}><ns:Email>{email}</ns:Email></ns:Person>',
    'person = Person(name="{name}", {key}="{id}", iban="{iban}")  # from the import',
    "curl -X POST https://crm.internal/api -d '{key}={id}' -d 'email={email}' -H 'X-Api-Key: {secret}'",
    "{key}: \"{id}\"\nemail: {email}\nbank:\n  iban: {iban}\n  bic: {bic}\n",
    "| Field | Value |\n|---|---|\n| {called} | {id} |\n| IBAN | {iban} |\n| Card | {card} |",
    "Agent: may I have your {called}?\nCaller: yes, it's {id}\nAgent: and a number to call you back?\nCaller: {phone}",
    "* {called} = {id}\n* mobile = {phone}\n* mail = {email}",
    "{called} / {id} / {iban}",
    "<dt>{called}</dt><dd>{id}</dd><dt>Card</dt><dd>{card}</dd>",
    "const user = {{ {key}: '{id}', mail: '{email}', ip: '{ip}' }};",
    "os.environ['DB_PASS'] = '{password}'\nrequests.get(url, params={{'{key}': '{id}'}})",
)  # fmt: skip

CLEAN = (
    "Order {n8} has been dispatched via DHL, tracking number 00340{n15}.",
    "Your parcel JJD{n16} arrives Thursday between 10:00 and 12:00.",
    "Ihre Bestellung Nr. {n3}-{n7}-{n7} wurde versandt, Sendungsnummer {n14}.",
    "Rechnung {n6}/2026: 3 x 149,90 € = 449,70 €, fällig am 15.12.2026.",
    "Votre commande {n3}-{n7}-{n7} a été expédiée; numéro de suivi 8R{n11}.",
    "Facture F2026-{n5} : 1 249,00 € TTC, à régler avant le 31/12/2026.",
    "Su pedido {n9} llegará el jueves; importe 49,95 €.", "L'ordine {n9} è stato spedito, importo 129,00 €, consegna "
                                                          "il 12/11.",
    "Twoje zamówienie {n9} zostało wysłane, kwota 129,99 zł.", "Uw bestelling {n9} is onderweg, bedrag € 49,95.",
    "Din ordre {n8} er afsendt, beløb 499,00 kr.", "Din beställning {n8} har skickats, summa 499 kr.",
    "Tilauksesi {n8} on lähetetty, summa 49,90 €.",
    "Vaša objednávka {n9} bola odoslaná, suma 49,90 €.", "Vaše objednávka {n9} byla odeslána, částka 1 290 Kč.",
    "Rendelését ({n9}) feladtuk, összeg 12 990 Ft.",
    "Comanda {n9} a fost expediată, total 249,90 lei.", "Vaša narudžba {n9} je poslana, iznos 49,90 €.",
    "Η παραγγελία {n9} στάλθηκε, ποσό 49,90 €.",
    "Поръчката Ви {n9} е изпратена, сума 49,90 лв.", "A sua encomenda {n9} foi enviada, valor 49,90 €.",
    "Jūsų užsakymas {n9} išsiųstas, suma 49,90 €.",
    "Jūsu pasūtījums {n9} ir nosūtīts, summa 49,90 €.", "Teie tellimus {n9} on saadetud, summa 49,90 €.",
    "Pöntunin þín {n8} hefur verið send, upphæð 4.990 kr.",
    "ISBN {isbn} - 3rd edition, 412 pages, 2019.", "EAN-13 {ean}, net weight 250 g, shelf life 24 months.",
    "GTIN: {ean}; qty 12; unit price 3.49.",
    "commit {sha}\nAuthor: build-bot\nDate: Tue Nov 3 09:12:44 2026 +0100", "sha256 {hex64}  release.tar.gz",
    "etag: \"{hex32}\"\ncontent-length: {n7}",
    "id: {uuid}\nversion: 4.12.{n2}\nbuild: {n6}", "Upgraded openssl from 3.0.13 to 3.0.15 and zlib to 1.3.1.2; nginx "
                                                   "1.27.{n1}.{n1}.", "Chrome/131.0.{n4}.{n3} Safari/537.36",
    "Meeting moved from 09:30 to 14:45 on 2026-11-{d2}, room 4.{n3}.",
    "Temperature 21.4 °C, humidity 48.2 %, pressure 1013.2 hPa at 06:00:00.",
    "lat 52.{n6}, lon 13.{n6}, alt 34.2 m", "POINT(13.{n6} 52.{n6})",
    "The fund grew from 1,204,500 to 1,318,900 units (+9.5 %).",
    "Revenue: EUR 12 450 000; costs: EUR 9 870 000; margin 20.7 %.",
    "Bug {n6} is a duplicate of {n6}; fixed in r{n6}.", "Exit code -10737{n5}; see line {n4} of parser.c.",
    "PID {n5} used {n7} kB; heap 512M; threads 128.",
    "epoch={n10} latency_ms={n3} status=200 bytes={n6}", "{\"ts\": {n13}, \"level\": \"info\", \"duration_us\": {n7}, "
                                                         "\"rows\": {n6}}",
                                                         "order_id,sku,qty,price\n{n9},AB-{n5},3,19.99\n{n9},CD-{n5},1,"
                                                         "249.00\n",
    "id;artikel;menge;preis\n{n8};Schraube M8;100;12,90\n{n8};Mutter M8;100;8,90\n",
    "INSERT INTO orders (order_no, total) VALUES ({n9}, 129.90);",
    "UPDATE stock SET qty = qty - 3 WHERE article = {n8};",
    "The password must contain 12 characters; the token is valid for 3600 seconds.",
    "Bitte ändern Sie Ihr Passwort alle 90 Tage.", "Section 12.3.4.5 of the manual describes version 10.2.{n1}.{n1}.",
    "Case C-{n3}/22, judgment of 4 May 2023, paragraph 45.", "§ 823 Abs. 1 BGB; BGH NJW 2019, 1234.",
    "Grant agreement No {n9}, call H2020-ICT-{n4}.", "DOI 10.1016/j.cell.2026.{n2}.{n3}",
    "arXiv:2401.{n5}v2, 14 pages.",
    "Player score {n7}, rank {n5}, level 42.", "Flight AF{n4} from CDG to FRA, gate K{n2}, boarding 07:15, seat 22A.",
    "Train ICE {n3}, platform 12, carriage 23, seats 45-46.",
    "Container MSKU{n7} loaded on vessel, voyage {n3}W, 24,500 kg.", "Patch {n4}.{n2}.{n5}.{n3} resolves 14 issues.",
    "Serial number: SN-{n4}-{n4}-{n4}; model X{n3}.", "License key format is XXXXX-XXXXX-XXXXX.",
    "Blood pressure 128/82 mmHg, pulse 72, SpO2 98 %, weight 71.5 kg.",
    "Hb 13.{n1} g/dl, leukocytes {n1}.{n1} G/l, CRP 0.{n2} mg/dl.", "Ibuprofen 400 mg 1-0-1, PZN {n8}, package of 50.",
    "Contract value 250 000 EUR, term 36 months from 01.01.2027.",
    "Budget line 12 02 01, commitment {n7}, payment 2026.", "Invoice total is $1,249.00 (PO {n8}).",
    "IMEI is a number of 15 digits; an IBAN in Germany has 22 characters.",
    "Dial plan, port {n5}, codec G.711, jitter {n2} ms.", "Please call the function with 3 arguments; it returns {n8}.",
    "mobile traffic rose by {n2} % to {n7} GB in 2026.", "Contact angle 112.4°, phone cover 12 x 7 cm.",
    "IP rating IP68, 10.1 inch, 1920x1200, 8000 mAh.", "10.{n1}.{n1} is the latest release, 9.{n1}.{n2} is still "
                                                       "maintained.",
                                                       "for (i = 0; i < {n8}; i++) sum += data[i] * 0x{hex8};",
                                                       "seed={n9}, lr=3e-4, step={n6}, loss=2.{n6}",
    "[{n6}, {n7}, {n8}, {n9}]", "The code 4{n3} returns \"not found\" for key {hex16}.",
    "Sum of 12 + 30 = 42; 2^32 = 4294967296; 10! = 3628800.", "Chapter 4, verse 12; psalm 119:105; page 1043.",
    "Draw {n4}: 3 - 14 - 22 - 31 - 40 - 47, bonus 9.",
    "Cell tower {n5}-{n5}, MCC 262, MNC 01, LAC {n5}.", "Election: 1 234 567 votes (48.2 %), 2 345 678 registered.",
    "Konto 1200 an Konto 8400, Beleg {n5}, 1.190,00.", "Kundennummer {n8}, Vertragsnummer {n9}.",
    "Numéro de dossier {n9}, référence {n8}.",
    "Numero pratica {n8}, protocollo {n7}.", "Número de expediente {n4}/2026, referencia {n8}.",
    "Nr sprawy {n4}/26, nr umowy {n8}.", "Zaaknummer {n8}, kenmerk {n7}.", "Sagsnummer {n8}, journalnummer {n7}.",
    "Číslo jednací {n5}/2026, číslo smlouvy {n9}.",
    "Asiakasnumero {n7}, laskun numero {n8}, viite {n10}.", "Αριθμός πρωτοκόλλου {n6}, αριθμός παραγγελίας {n8}.",
    "Номер на договор {n8}, фактура № {n10}.", "Ügyszám {n6}, szerződésszám {n8}.",
    "Matter no. {n6}, file ref. {n8}/AB.", "Gate 4, shelf 12, bin {n5}, lot {n8}.",
    "Zählernummer {n8}, Zählerstand {n6},4 kWh.", "Compteur n° {n9}, relevé {n5} kWh.", "Contatore {n9}, lettura {n5}.",
    "Meter point {n13}, reading {n6}.", "WKN 840400, ISIN DE0008404005, close 271.30.",
    "Ticker SAP.DE 128.44 +1.2 %, volume {n7}.",
    "Postleitzahlen 10115 bis 14199 gehören zu Berlin.", "Hex color #{hex6}, opacity 0.85, z-index {n4}.",
    "timeout 30s, retries 5, backoff 2^n, jitter 0.{n3}", "1. Alpha 2. Beta 3. Gamma 10. Kappa 100. Rho 1000. Alpha",
    "Gen 1:1-2:3; Mt 5:3-12; 1 Cor 13.",
)  # fmt: skip
