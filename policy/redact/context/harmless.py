"""Numbers that are called something else: orders, invoices, articles, versions, hashes, prices, failed accounts.

Detectors that would otherwise guess, because the number has no name, skip them. Numbers named as personal data, or
verified by a strong check, are not tested.
"""

import re
from bisect import bisect_left

from policy.redact.text.reading import Reading, Spans

_NOUNS = (
    r"order|bestell|auftrag|rechnung|invoice|inv|facture|commande|pedido|factura|ordine|fattura|zamowieni|faktur"
    r"|bestelling|bestelnummer|factuur|ordre|encomenda|fatura|processo|comanda|comenzi|objednavk|narocil|narudzb"
    r"|racuna?"
    r"|rendeles|szamla|tilau|lasku|tellimu|arve|uzsakym|pasutijum|rekin|pontun|поръчк|фактур|παραγγελ|τιμολογ|ticket"
    r"|case|issue|bug|build|part|teile|serial|serie|sn|sku|article|artikel|articulo|articolo|artykul|isbn|issn|ean|gtin"
    r"|upc|doi|asin"
    r"|tracking|sendung|parcel|paket|colis|lot|batch|charge|version|ver|release|commit|rev|revision|request|trace|span"
    r"|timestamp"
    r"|meeting|flight|vol|flug|document|dokument|reference|ref|aktenzeichen|az|dossier|protocol|protokol|contract"
    r"|vertrag"
    r"|customer (?:no|number|id)|kundennummer|kunden-?nr|numero client|klantnummer|numer klienta|asiakasnumero|error"
    r"|err"
    r"|line|port|pid|offset|size|length|count|total|sum|amount|betrag|montant|importe|importo|kwota|bedrag|belopp"
    r"|checksum|crc|sha|md5|hash|model|modell|modele|chapter|page|seite|art|section|paragraph|no\. of|item|pos|row"
    r"|zeile"
    r"|lieferschein|versand|quittung|receipt|recibo|ricevuta|kvitt|reikning|upphaed|ircevut|ordni|balik|pakk|pakn"
    r"|товарит|saskait"
    r"|levering|forsend|fragt|spedi|deliver|shipment|waybill|konsignac|barcode|strichcode|mmsi|imo|cas|cpv|tender|lotto"
    r"|gps|lat|lon|latitude"
    r"|longitude|coordin|koordin|chassis|fahrgestell|kilometer|odometer|kenncode|passcode|meeting|webinar|seat|pnr|uid"
    r"|gid|guid|uuid"
    r"|score|highscore|level|loss|matrix|constant|revisi|hw|fw|firmware|mac|msg|message id|session|job|task|node|thread"
    r"|block|tx|hash"
    r"|polic[ey]\w* (?:no|number)|schaden|claim|vorgang|antrag|dosar|spis|spisova|spraw|sag|mal|arende|asia|toimik"
    r"|bylos|lieta"
    r"|suma|summa|referenc|sagsn|malnummer|malnr|volume|position"
    r"|marke|unionsmarke|wortmarke|trade ?mark|marque|marca|merk|znak towarowy|patent|register|registernummer"
    r"|handelsregister|hrb|hra|kvk|cvr|verordnung|richtlinie"
    r"|regulation|directive|reglement|directive|reglamento|regolamento|rozporzadzeni|lock|snowflake|activity|blk|inode"
    r"|ts|tid|thread|created_at|updated_at|ack|seq"
    r"|aanvraag|cerere|wniosek|wniosk|demande|solicitud|richiesta|ansokan|ansogning|soknad|hakemus|zadost|ziadost"
    r"|kerelem|заявлени"
    r"|αιτηση|zahtjev|vloga|taotlus|pieteikum|prasym|umsokn|application|vde|din|iso|iec|astm|zahler|compteur|contatore"
    r"|licznik|meterstand|lagerplatz|regal|sak|asi"
    r"|buchung|beleg|kolli|posiljk|zasilk|zasielk|sending|siunt|sutijum|saadetis|lahetys|przesylk|csomag|konsenja"
    r"|αποστολ|пратк|awb|cusip|pourvoi|seguimiento|material|mat|albaran|viite|dpma|eutm|subject|betreff|urteil|bgh|bverfg|celex|population|einwohner|units"
    r"|step|seed|nonce|rows|epoch|s/n|krs|kadaster|kataster|cadastr|catast|zbl|katalog|catalog|taric|kn.?code|cn.?code"
    r"|hs|hts|zolltarif|tariff|jd|mjd|utm|easting|northing|rechtswert|hochwert|id_order|order_id|item_id|request_id"
)
# The shortest match whole words only: `Mallet, 06 95 51 80 86` is not a Danish case number (`mal`).
_WHOLE = "|".join(f"{noun}(?![^\\W\\d_])" if len(noun) <= 3 else noun for noun in _NOUNS.split("|"))
_NAMED = re.compile(
    rf"(?<![^\W_])(?:{_WHOLE})[^\W\d_]{{0,14}}[ _-]?(?:id|no|nr|n|num|number|nummer|numero|numer|cislo|stevilka"
    rf"|szam[u]?)?"
    r"(?:</t[hd]>\s{0,4}<t[hd]>)?[^\w\n]{0,5}(?:[^\W\d_]{1,3}[.:]? )?(?:is |ist |est |es |e |je |to |of |n |nr |no "
    r"|# ?)?[\"'#(]{0,2}(?:[a-z]{1,4}[-:]?)?[0-9 ./-]{0,24}\Z"
)
# First letters of the words above, as in `Reading.heads`.
_INITIALS = frozenset(re.match(r"[^\W\d_]{1,3}", noun)[0] for noun in _NOUNS.split("|"))  # type: ignore[index]
_HEADING = re.compile(rf"[^\w]{{0,3}}(?:{_WHOLE})")
_REACH = 64
_SHAPES = re.compile(
    r"(?<![A-Za-z0-9_-])(?:"
    r"[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}"  # UUID
    r"|(?=[0-9]{0,40}[A-Fa-f])[0-9A-Fa-f]{16,128}"  # hash, trace id
    r"|(?<=[A-Za-z]/)[0-9]{1,4}(?:\.[0-9]{1,6}){1,4}"  # product of a browser
    r"|(?:19|20)[0-9]{2}/S [0-9]{1,3}-[0-9]{5,8}"  # notice in the Official Journal
    r"|[0-9]{1,2}[C-X] [0-9]{6} [0-9]{7}"  # UTM
    r"|97[89][ -]?[0-9]{1,5}[ -][0-9]{1,7}[ -][0-9]{1,7}[ -]?[0-9X]"  # ISBN-13
    r"|(?<!\.)(?:[0-9]{1,3}\.){3}[0-9]{1,3}(?!\.[0-9])"  # IPv4, not `06.12.34.56.78`
    r"|[A-Z]{2}[0-9]{2}(?:[ -]?[A-Z0-9]{3,4}){3,8}(?:[ -]?[A-Z0-9]{1,3})?"  # account
    r")(?![A-Za-z0-9_])"
    r"|(?<=[A-Za-z]-)[0-9A-Fa-f]{8}-(?:[0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}(?![A-Za-z0-9_])"  # UUID behind its kind
    r"|(?:\+ ?|(?<![A-Za-z0-9])(?<![0-9] )00)[(1-9][0-9 ()./-]{6,18}[0-9]"  # international phone
    r"|(?<![A-Za-z0-9.,])(?:0|[1-9][0-9]{0,2})\.[0-9]{4,16}(?![0-9]|[.,-][0-9])"  # decimal number
)
_UNIT = re.compile(
    r"(?:[.,][0-9]{1,2})? ?(?:€|EUR|USD|\$|£|GBP|CHF|kr|SEK|NOK|DKK|PLN|zł|Kč|CZK|HUF|Ft|lei|RON|%|km|kg|m²|MB|GB|kB"
    r"|[Ee]uro?s?|Exemplare|sz\.|számú|számla|units|times|calls|rows|fois|veces|volte|people|euros|bytes|ms|tonnes?|m/s"
    r"|km/h|kWh|MWh|[kMG]?Hz|rpm|mm|Stück|pcs|inhabitants)(?![A-Za-z])|,[0-9]{2}(?![0-9])"
)
_CURRENCY = re.compile(r"(?:€|EUR|USD|\$|£|GBP|CHF|PLN) ?[0-9 .,']{0,12}\Z")
_ISO_DATE = re.compile(r"(?:19|20)[0-9]{2}-[01][0-9]-[0-3][0-9](?![0-9])")


def called_otherwise(reading: Reading, start: int, end: int) -> bool:
    """Return whether ``reading[start:end]`` has another name, is a price, or begins as a date.

    The name may be before it or at the head of its column.
    """
    return (
        _heads_otherwise(reading, start)
        or _is_named_otherwise(reading, start)
        or _UNIT.match(reading, end) is not None
        or _CURRENCY.search(reading, max(0, start - 20), start) is not None
        or _ISO_DATE.match(reading, start) is not None
    )


def _is_named_otherwise(reading: Reading, start: int) -> bool:
    known: list[int] | None = reading.__dict__.get("other_names")
    if known is None:
        known = reading.__dict__["other_names"] = reading.words_from(_INITIALS)
    first = max(0, start - _REACH)
    at = bisect_left(known, first)
    if at == len(known) or known[at] >= start:
        return False
    return _NAMED.search(reading.folded, first, start) is not None


def _heads_otherwise(reading: Reading, start: int) -> bool:
    return reading.is_below(
        start, "other numbers", lambda column: _HEADING.match(reading.folded, column.start, column.end) is not None
    )


def shaped_otherwise(reading: Reading, start: int, end: int) -> bool:
    """Return whether part of ``reading[start:end]`` has the format of something other than a national number.

    These formats are accounts, host addresses, international phones and hashes.
    """
    known: Spans | None = reading.__dict__.get("shaped")
    if known is None:
        known = reading.__dict__["shaped"] = Spans(match.span() for match in _SHAPES.finditer(reading))
    return known.covers(start, end)
