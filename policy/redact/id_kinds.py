# ruff: noqa: E501  # tables read better in one line a row
"""The kinds of national numbers: how each is written and checked, what it is called, when it needs a name.

Validators are those of `python-stdnum` and our own (`id_checks`). A kind's first two letters are its country's.
"""

from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple

from stdnum import luhn
from stdnum.at import tin, vnr
from stdnum.bg import egn, pnf
from stdnum.ch import ssn
from stdnum.cy import vat as cy_vat
from stdnum.cz import rc
from stdnum.dk import cpr
from stdnum.ee import ik
from stdnum.es import cif, dni, nie
from stdnum.fr import nif as fr_nif
from stdnum.fr import nir, siren, siret
from stdnum.gb import nhs, utr
from stdnum.gr import amka
from stdnum.gr import vat as gr_vat
from stdnum.hr import oib
from stdnum.ie import pps
from stdnum.is_ import kennitala
from stdnum.it import codicefiscale
from stdnum.lt import asmens
from stdnum.nl import bsn
from stdnum.pl import nip, pesel, regon
from stdnum.se import personnummer
from stdnum.si import ddv

from policy.redact import id_checks


class Needs(IntEnum):
    """What a number needs besides its check: nothing, nothing if written in its own way, a text of its country, a name.

    ``WRITTEN``: with the separators of its country; without them as ``COUNTRY``.
    """

    NOTHING = 0
    WRITTEN = 1
    COUNTRY = 2
    NAME = 3


class IdKind(NamedTuple):
    """``shapes``: its letters and digits without separators: 9 a digit, A a letter.

    ``names``: what it is called, in small letters without marks; a blank also stands for ``_``, ``-`` or nothing, and
    a ``*`` for the rest of a word.
    """

    shapes: str
    is_valid: Callable[[str], bool]
    needs: Needs
    names: str
    written: str = ""


_N, _W, _C, _NAME = Needs
_SSN_DE = "sozialversicherungs*|sv nummer|sv nr|versicherungsnummer|versicherungsnr"
IDS: dict[str, IdKind] = {
    "it_cf": IdKind("", codicefiscale.is_valid, _N, "tax n*|tax id*|tax code*|codice fisc*|fiscal code it|codice fiscale|cod fisc*|cf|c f|italian tax*|codicefiscale"
                    "|tessera sanitaria|italian fisc*|italienische steuer*|code fiscal italien"),
    "fr_nir": IdKind("9" * 15 + " 999999A99999999", nir.is_valid, _N,
                     "numero d assure*|securite sociale|n secu*|n ss|numero ss|secu|numero secu*|nir|insee|carte vitale|numero de securite sociale|nss|french social*"
                    "|numero d immatriculation|immatriculation secu*|assurance maladie|numero d assurance sociale|french insurance*|franzosische sozial*"),
    "es_dni": IdKind("99999999A", dni.is_valid, _W, "dni*|d n i|documento nacional*|nif|n i f|spanish id*"
                    "|numero de dni|num dni|nro dni|no dni|spanish national*|identificacion fiscal", r"[0-9]{2}(?:\.?[0-9]{3}){2}-[A-Za-z]|[0-9]{2}\.[0-9]{3}\.[0-9]{3} ?[A-Za-z]"),
    "es_nie": IdKind("A9999999A", nie.is_valid, _N, "nie|n i e|extranjer*|nif"
                    "|identidad de extranj*|spanish foreign*"),
    "de_idnr": IdKind("99999999999", id_checks.is_german_tax_number, _N, "tax n*|tax id*|tax code*|steuer ident*|st id nr|steueridnr*|steuer idnr*|steuerid*|steuer id*|steuerliche* id*|steueridentifikation*|idnr|id nr"
                      "|steuernummer|steuer nr|tin|identifikationsnummer|german tax*"
                    "|ident nr|identnr|steuerl id*|steuerliche identif*|numero fiscal allemand|deutsche steuer*"),
    "de_stnr": IdKind("9999999999 99999999999 9999999999999", id_checks.is_german_tax_office_number, _NAME, "steuernummer*|steuer nr|steuernr|st nr|stnr|tax number|tax no|german tax number|german tax no"),
    "de_rvnr": IdKind("99999999A999", id_checks.is_german_pension_number, _N,
                      f"renten*|rvnr|rv nummer|{_SSN_DE}|german social*"
                    "|vsnr|drv nummer|drv nr|versicherungs nr|vers nr|versnr|sv ausweis|sozialvers*|german pension*|rv nr|rvnummer"),
    "be_nn": IdKind("99999999999", id_checks.is_belgian_national_number, _N, "identificatienummer van het rijksregister|rijksregister*|rijksregisternr|registre national*|niss|insz|nationalregister*"
                    "|rrn|n national|nationaal nummer|numero national|belgian national*|registre nationale|nn"
                    "|nrn|rijksregister nr|rijks reg*|registre nat*|numero de registre*|securite sociale|insz nr|niss nr|numero d identification nat*|bis nummer|numero bis|national register*"),
    "ch_ahv": IdKind("9999999999999", ssn.is_valid, _N, "ahv*|avs*|navs13|ssn|oasi|sozialversicherungs*|swiss social*|n avs"
                    "|securite sociale|sozialvers*|avs numero|oasi*|ahv nr|numero avs|versichertennummer"),
    "fi_hetu": IdKind("999999A999A 9999999999 999999999A 999999A9999", id_checks.is_finnish_identity_code, _N,
                      "sosiaaliturvatun*|sotu|henkilotun*|hetu*|henkilotunnu*|personbeteckning*|finnish personal*|henkilotunnus*"
                    "|henk tun*|finnish social*|finnish id*|finnish national*", r"[0-9]{6}[-+A-FU-Ya-fu-y][0-9]{3}[0-9A-Za-z]"),
    "ie_pps": IdKind("9999999A 9999999AA", pps.is_valid, _C, "pps*|ppsn|personal public service*|irish pps*"
                    "|uimhir psp|uimhir p s p|uimhir phearsanta*|psp|p p s|irish personal*|irish social*"),
    "ro_cnp": IdKind("9999999999999", id_checks.is_romanian_personal_number, _N, "cod* numeric*|c n p|cnp*|cod numeric*|codul numeric*|romanian personal*"
                    "|cod personal"),
    "si_emso": IdKind("9999999999999", id_checks.is_yugoslav_personal_number, _N, "maticn* stevilk*|maticn* st|enotn* maticn*|emso|maticna stevilk*|maticne stevilk*|enotna maticna*"
                    "|emso*|emsa|emsu|emsom"),
    "hr_jmbg": IdKind("9999999999999", id_checks.is_yugoslav_personal_number, _NAME, "jmbg|maticni broj"),
    "lu_nin": IdKind("9999999999999", id_checks.is_luxembourg_number, _N,
                     "matricul*|cns|identifiant national|numero d identification*|identification national*|nin"
                     "|identifikationsnummer"
                    "|securite sociale|matrikel*|sozialvers*|numero national|matr nat*|national id*"),
    "pt_cc": IdKind("999999999AA9 999999999A99 9999999999A9", id_checks.is_portuguese_citizen_card, _N, "cartao de cidada*|bilhete de identidade|citizen card*|cartao de cidadao|cartao cidadao|cc"
                    "|n cc|citizen card"
                    "|cartao de cid*|cartao cid*|documento de identificacao|bi cc|cc bi|portuguese citizen*|portuguese id*"),
    "no_fnr": IdKind("99999999999", id_checks.is_norwegian_birth_number, _N, "personnr|fodselsnr|norsk person*|fodselsn*|fnr|personnummer*|d nummer|fodsels og*"
                    "|fodsels nr|fods nr|fodselsnummer og*|fnr dnr|dnr|birth number|foedsels*"),
    "se_pnr": IdKind("9999999999 999999999999", personnummer.is_valid, _W, "pers nr|persnr|personbeteckning*|swedish identity*|swedish social*|personn*|samordningsn*|pnr|swedish personal*|person nr"
                    "|svenskt pers*|personlig identitet*|person nummer",
                     r"(?:19|20)?[0-9]{6}[-+][0-9]{4}"),
    "cz_rc": IdKind("9999999999 999999999", rc.is_valid, _W, "rodn* cisl*|rodn* c|rodne cislo*|rodneho cisla*|rodnym cislem|rodnem cisle|r c|rc"
                    "|rod c|rod cislo|czech birth*|birth number|personal number"
                    "|rodn cislo", r"[0-9]{6}/[0-9]{3,4}"),
    "sk_rc": IdKind("9999999999 999999999", rc.is_valid, _W, "rodn* cisl*|rodn* c|rodne cislo*|rodneho cisla*|rodnym cislom|r c|rc|rod c|rod cislo"
                    "|slovak birth*|birth number"
                    "|rodn cislo|personal number", r"[0-9]{6}/[0-9]{3,4}"),
    "dk_cpr": IdKind("9999999999", cpr.is_valid, _W, "personnr|cprnr|cpr nr|cpr*|personnummer*"
                    "|person nr|civil registration*", r"[0-9]{6}-[0-9]{4}"),
    "is_kt": IdKind("9999999999", kennitala.is_valid, _W, "kennital*|kennitol*|kt"
                    "|kennit*", r"[0-9]{6}-[0-9]{4}"),
    "lv_pk": IdKind("99999999999", id_checks.is_latvian_personal_code, _W, "pers kod*|person* kod*|pers k|personas kod*|personala kod*|p k|pk"
                    "|personas k|персональный код*|персональныи код*",
                    r"[0-9]{6}-[0-9]{5}"),
    "pl_pesel": IdKind("99999999999", pesel.is_valid, _C, "numer ewidencyjn*|nr ewidencyjn*|powszechny elektroniczny*|pesel*"
                    "|nr pesel"),
    "ee_ik": IdKind("99999999999", ik.is_valid, _C, "isikukod*|eesti isik*|isikukood*|ik|id kood*|isikutunnus*"
                    "|isiku kood*|isikuk|личныи код*|личный код*|isikutunnistuse*"),
    "lt_ak": IdKind("99999999999", asmens.is_valid, _C, "asm kod*|asmens kod*|asmens kod*|asmens koda|a k|ak"
                    "|asmens id*|asm k"),
    "hr_oib": IdKind("99999999999", oib.is_valid, _C, "osobn* identifikacijsk*|oib*|osobni identifikacijsk*|osobnog identifikacijsk*"
                    "|osobni id*"),
    "bg_egn": IdKind("9999999999", egn.is_valid, _C, "единн* граждан*|е г н|егн*|egn*|единен граждански*"
                    "|единен граж*|единния граж*|uniform civil*|unified civil*|edinen grazh*|personen egn"),
    "bg_lnch": IdKind("9999999999", pnf.is_valid, _NAME, "лнч|lnch|личен номер на чужденец"),
    "gr_amka": IdKind("99999999999", amka.is_valid, _C, "αμκα|α μ κ α|amka|κοινωνικης ασφαλισης|greek social*"
                    "|αμκα*|μητρωου κοιν*|μητρωο κοιν*|greek soc*|griechische soz*"),
    "at_svnr": IdKind("9999999999", vnr.is_valid, _C, f"svnr|{_SSN_DE}|e card|vsnr|austrian social*|osterreichische sozial*"
                    "|vers nr|versnr|sv nummer*|securite sociale|sozialvers*|hauptverband*|osterr* sv*|austrian ss*|insurance number"),
    "hu_szsz": IdKind("99999999999", id_checks.is_hungarian_personal_number, _C, "szemelyi szam*|szemelyi azonosit*|szemelyazonosit*"
                    "|hungarian personal*|szem szam|szemelyi sz*|szem azonosito|szemelyi"),
    "hu_taj": IdKind("999999999", id_checks.is_hungarian_health_number, _C, "tajszam*|tarsadalombiztositas*|taj|taj szam*|taj kartya*|tarsadalombiztosit*|hungarian social*"
                     "|taj sz"
                    "|taj azonosito*|tarsadalom*|tb szam|hungarian health*|ungarische soz*"),
    "hu_tax": IdKind("9999999999", id_checks.is_hungarian_tax_number, _C, "tax n*|tax id*|tax code*|adoszam*|ado azonosito*|adoazonosit*|ado azonosit*|adojel*|hungarian tax*"
                    "|hu tax*|ado azon*|adoaz*|ungarische steuer*"),
    "es_nss": IdKind("999999999999", id_checks.is_spanish_insurance_number, _NAME, "numero de la seguridad social|seguridad social|n s s|nss|naf|nuss|n u s s|seg social|num* seg social|n seg social"
                     "|afiliacion*|numero de afiliacion|num* seguridad social|n seguridad social|social security*|spanish social*"),
    "pt_niss": IdKind("99999999999", id_checks.is_portuguese_insurance_number, _NAME, "niss*|seguranca social|numero de seguranca social"
                      "|identificacao da seguranca social|n seguranca social|beneficiario|social security*|portuguese social*"),
    "pl_id": IdKind("AAA999999", id_checks.is_polish_identity_card, _NAME, "dowod*|nr dowodu|numer dowodu|seria i numer|seria i nr|id card*"
                    "|identity card*|identity document*|document n*|document id|polish id*|dowod osobist*|dowodu osobist*"),
    "de_kvnr": IdKind("A999999999", id_checks.is_german_health_insurance_number, _C,
                      "versicherten id*|krankenkassennr|gkv nummer|kranken*|kvnr|versichertennummer*|versichertennr|gesundheitskarte|egk|german health*|kv nummer|versicherten nr"
                    "|kv nr|kvnummer|kranken vers*|versicherten nummer|versichertenkarte|gesundheits*|egk nr|egk nummer|health insurance*|versicherungs nr"),
    "pl_nip": IdKind("9999999999", nip.is_valid, _C, "tax n*|tax id*|tax code*|nip*|numer identyfikacji podatkowej|numeru identyfikacji podatkowej"
                    "|polish tax*|nr identyfikacji podatkowej|identyfikacji podatkowej|numer podatnika"),
    "nl_bsn": IdKind("999999999", bsn.is_valid, _C, "persoonsnummer*|burger service*|bsn*|burgerservice*|sofi|sofinummer*|dutch citizen*|burger service*"
                    "|burgerserv*|citizen service*|service number|persoonsnr|sofi nr*"),
    "pt_nif": IdKind("999999999", id_checks.is_portuguese_tax_number, _C, "n fiscal|no fiscal|tax n*|tax id*|tax code*|nif|n i f|contribuinte*|numero fiscal|identificacao fiscal|numero de contribuinte"
                     "|portuguese tax*|nif*"
                    "|n contribuinte|num contribuinte|contrib|identificacao fisc*|nipc"),
    "gr_afm": IdKind("999999999", gr_vat.is_valid, _C, "tax n*|tax id*|tax code*|αφμ|α φ μ|afm|φορολογικ*|greek tax*|φορολογικου μητρωου"
                    "|αφμ*|αριθμος φορολογικου*|αρ φορολογικου*|φορολογικου μητ*|griechische steuer*|greek vat|a f m"),
    "fr_spi": IdKind("9999999999999", fr_nif.is_valid, _C, "tax n*|tax id*|tax code*|spi|numero fiscal*|reference fiscale|n fiscal|identifiant fiscal"
                     "|numero d identification fiscale"
                    "|nif|numero de fiscal*|ref fiscale|french tax*|fiscal francais|franzosische steuer*"),
    "fr_siret": IdKind("9" * 14, siret.is_valid, _C, "siret*"),
    "fr_siren": IdKind("999999999", siren.is_valid, _NAME, "siren*|rcs"),
    "es_cif": IdKind("A99999999 A9999999A", cif.is_valid, _C, "cif|c i f|nif"),
    "cy_tic": IdKind("99999999A", cy_vat.is_valid, _C, "αφμ|α φ μ|tax n*|tax id*|tax code*|tic|ταυτοτητ*|α φ τ|αφτ|tax identification*|φορολογικης ταυτοτητας|κωδικος*"
                    "|cy tax*|cy tic|cyprus tax*|cypriot tax*|φορολογικης ταυτ*|αφτ*"),
    "cy_id": IdKind("999999 9999999 99999999 9999999999", id_checks.is_number, _NAME, "δελτιο ταυτοτητας|αριθμος ταυτοτητας"
                    "|δελτιου ταυτοτητας|αδτ|α δ τ|ταυτοτητ*|cypriot id*|cyprus id*"
                    "|cy id*|αρ ταυτ*|αριθμος δελτ*|δελτιου ταυτ*|arithmos taft*|arithmos taut*|taftotita*|tautotita*|id card*|identity card*|identity no*|identity number*|carte d identite chypr*"),
    "mt_id": IdKind("9999A 99999A 999999A 9999999A", id_checks.is_maltese_identity_card, _NAME,
                    "i d no|i d number|i d card*|numru tal id*|karta ta l identit*|numru ta l id*|karta ta*|numru tal karta*|tal identita|maltese id*|id card*|karta tal identita*|numru ta l identita*|malta id*"
                    "|identity card*"
                    "|mt id*|nru tal id*|nru tal karta*|ki nru*|ki numru|karta id*|karta tal i*|id nru|identity doc*|carte d identite malt*|numru id*"),
    "li_peid": IdKind("99999 999999 9999999 99999999 999999999 9999999999 99999999999 999999999999", id_checks.is_number, _NAME,
                      "peid*|personenidentifikation*|pe id"
                    "|pe id nr|peid nr|personen id*|personenid*|personennummer*|personen nr|personennr|personal no|personal nr|person id|pers id|identification personnelle|personal number|personal id*|steuernummer|steuer nr|versichertennummer|versicherten nr"),
    "at_tin": IdKind("999999999", tin.is_valid, _NAME, "abgabenkontonummer|abgabenkonto*|steuernummer*|st nr|steuernr|steuer nr|austrian tax*"
                    "|abgabenkonto nr|osterreichische steuer*"),
    "si_tax": IdKind("99999999", ddv.is_valid, _NAME, "davcn* stevilk*|davcn*|slovenian tax*|id za ddv"
                    "|si tax*|tax n*|tax id*|tax code*|davc st*|dav st*|ds|slowenische steuer*|id st za ddv"),
    "de_id": IdKind("", id_checks.is_document_number, _NAME, "personalausweis*|reisepass*|ausweis*|passport*|passnummer|pass nr|perso nr"
                    "|identity card*|id karte"
                    "|personalausw*|perso|id karte*|german id*|german passport*|id card*|identity document*|document n*|document id|documentnumber|dokumentennummer|dokumenten nr|identitatskarte*|carte d identite*|carta d identita*"),
    "passport": IdKind("", id_checks.is_travel_document, _NAME,
                       "passport*|passeport*|pasaporte*|passaporto*|passaporte*|passaport|reisepass*|passnummer|passnr|pass nr|pass no|paszport*|nr paszportu|paspoort*|pasnummer"
                       "|passin numero|passinumero|utlevel*|pasaport*|cestovn* pas*|cislo pasu|potn* list*|putovnic*|διαβατηρι*|паспорт*|pases n*|passi number|passi nr|paso n*|vegabref*"
                       "|identitatskarte*|obcansk* prukaz*|cislo op|obciansk* preukaz*|szemelyi igazolvany*|szig|carte nationale d identite*|cni|carte d identite*"
                       "|carta d identita|osobn* iskaznic*|osebn* izkaznic*|лична карта*|лична карта|carte de identitate|buletin*|serie ci|isikutunnistus*|id kaart*|asmens tapatyb*|personas apliec*"
                       "|identiteitskaart*|travel document*|identity document*|document n*|δελτιο ταυτοτητας|δελτιου ταυτοτητας|αριθμος ταυτοτητας|αδτ|α δ τ|carta identita*"
                       "|fuhrerschein*|permis de conduire|driving licen*|driver* licen*|carnet de conducir|permiso de conducir|patente di guida|carta de conducao|prawo jazdy|prawa jazdy"
                       "|rijbewijs*|korkort*|korekort*|forerkort*|ajokort*|ridicsk* prukaz*|vodicsk* preukaz*|vezetoi engedely*|vozack* dozvol*|vozniska dovoljen*|permis de conducere"),
    "pl_regon": IdKind("999999999 " + "9" * 14, regon.is_valid, _NAME, "regon*"),
    "gb_nino": IdKind("AA999999A", id_checks.is_british_insurance_number, _N, "national insurance*|nino|ni number|ni no"),
    "gb_nhs": IdKind("9999999999", nhs.is_valid, _NAME, "nhs*"),
    "gb_utr": IdKind("9999999999", utr.is_valid, _NAME, "utr|unique taxpayer*"),
    "us_ssn": IdKind("999999999", id_checks.is_american_insurance_number, _W, "ssn|social security*|us ssn",
                     r"[0-9]{3}-[0-9]{2}-[0-9]{4}"),
    "ehic": IdKind("9" * 20, lambda n: n.startswith("80") and luhn.is_valid(n), _N, "ehic|european health*|europaische krankenversicherungs*"
                   "|ceam|tse|team|evkk|carte europeenne*"),
    "mrz": IdKind("", bool, _NAME, ""),
}  # fmt: skip
# Nothing in the number itself speaks for these; a name that others have too is not enough.
UNCHECKED = frozenset({"cy_id", "li_peid", "us_ssn"})
# One number under one name, issued by two states; which of them a text means, its language says.
SAME_NUMBER = {"sk_rc": "cz_rc", "li_ahv": "ch_ahv"}
