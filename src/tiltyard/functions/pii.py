"""Find and mask what identifies persons, by rules: addresses of mail, phones, cards, IP addresses, IBANs.

Rules find forms, not meanings: names and addresses of streets are not found. What has check digits is checked (Luhn,
ISO 13616), so that few other numbers are taken for it.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tiltyard.functions.ready_made import Takes, map_values, ready_made
from tiltyard.model.refusals import RefusedError

KINDS = ("email", "iban", "card", "ip", "phone")
"""What is found; where two overlap, it is what stands first here."""
_FOUND = pa.list_(pa.struct([("kind", pa.string()), ("text", pa.string()), ("start", pa.int32()), ("end", pa.int32())]))

# Each begins where the run of characters that it is made of begins, and its parts are bounded: no text is read twice.
_EMAIL = re.compile(r"(?<![\w.+%-])[\w.+%-]{1,64}@(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,24}(?![\w-])")
_IBAN = re.compile(r"(?<!\w)[A-Z]{2}\d{2}(?: ?[A-Z0-9]){11,30}")
_CARD = re.compile(r"(?<![\w.-])\d(?:[ -]?\d){12,18}(?![\w-])")
_CARD_FORMS = re.compile(  # of the networks: how many digits follow which first ones
    r"4(?:\d{12}|\d{15}|\d{18})|5[1-5]\d{14}|2[2-7]\d{14}|3[47]\d{13}|3(?:0[0-5]|[68]\d)\d{11}|35\d{14}|6\d{15,18}"
)
_IP = re.compile(r"(?<![\w.:])(?:(?:\d{1,3}\.){3}\d{1,3}(?!\.?\w)|[0-9A-Fa-f:]{3,39}(?![\w:]))")
_PHONE = re.compile(r"(?<![\w+.])(?:\+|\(?\d)[\d ()./-]{5,22}\d(?!\w)")
_PHONE_FORMS = re.compile(
    r"(?:\+|00)[1-9][\d ()./-]*"  # international
    r"|\(?0[1-9]\d*\)?[ /-][\d ()/-]*"  # national, with a trunk zero
    r"|(?:1[ .-])?\(?[2-9]\d{2}\)?[ .-]\d{3}[ .-]\d{4}"  # of North America
)
_DATE = re.compile(r"\d{1,4}[./ -]\d{1,2}[./ -]\d{1,4}")
MIN_PHONE_DIGITS, MAX_PHONE_DIGITS = 7, 15

_IBAN_LENGTHS: Mapping[str, int] = {
    country: length
    for length, countries in {
        15: "NO", 16: "BE", 18: "DK FO FI GL NL SD", 19: "MK SI", 20: "AT BA EE KZ LT LU XK", 21: "CH HR LI LV",
        22: "BG BH CR DE GB GE IE ME RS VA", 23: "AE GI IL IQ TL", 24: "AD CZ ES MD PK RO SA SE SK TN VG",
        25: "LY PT ST", 26: "IS TR", 27: "BI DJ FR GR IT MC MR SM", 28: "AL AZ BY CY DO GT HU LB NI PL SV",
        29: "BR EG PS QA UA", 30: "JO KW MU", 31: "MT SC", 32: "LC", 33: "RU",
    }.items()
    for country in countries.split()
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class PersonalMatch:
    """Something that was found, by the positions of its characters."""

    kind: str
    start: int
    end: int


def _check_kinds(kinds: Sequence[str]) -> None:
    for kind in kinds:
        if kind not in KINDS:
            raise RefusedError(f"kinds has '{kind[:100]}': there are {', '.join(KINDS)}.")
    if not kinds:
        raise RefusedError(f"kinds is empty: name some of {', '.join(KINDS)}.")


def _found_type(*, kinds: Sequence[str]) -> pa.DataType:
    _check_kinds(kinds)
    return _FOUND


def _masked_type(*, kinds: Sequence[str], mask: str | None) -> pa.DataType:
    _check_kinds(kinds)
    return pa.string()


@ready_made(version=1, takes=Takes.TEXT, result=_found_type, result_text="list of kind, text, start, end")
def find_pii(texts: pa.Array, *, kinds: tuple[str, ...] = KINDS) -> pa.Array:
    """Find addresses of mail, IBANs, cards, IP addresses and phone numbers, with the positions of their characters."""

    def find(text: str) -> list[dict[str, Any]]:
        return [
            {"kind": each.kind, "text": text[each.start : each.end], "start": each.start, "end": each.end}
            for each in find_all(text, kinds)
        ]

    return map_values(texts, _FOUND, find)


@ready_made(version=1, takes=Takes.TEXT, result=_masked_type, result_text="text")
def mask_pii(texts: pa.Array, *, kinds: tuple[str, ...] = KINDS, mask: str | None = None) -> pa.Array:
    """Replace what `find_pii` finds by `mask`, or by its kind in brackets: [email]."""

    def replace(text: str) -> str:
        parts, position = [], 0
        for each in find_all(text, kinds):
            parts += [text[position : each.start], f"[{each.kind}]" if mask is None else mask]
            position = each.end
        return "".join([*parts, text[position:]])

    return map_values(texts, pa.string(), replace)


def find_all(text: str, kinds: Sequence[str] = KINDS) -> list[PersonalMatch]:
    """Return what is found in a text, in its order; of findings that overlap, the one whose kind stands first."""
    taken: list[PersonalMatch] = []
    for kind in KINDS:
        if kind in kinds:
            found = [PersonalMatch(kind, start, end) for start, end in _FINDERS[kind](text)]
            taken = _merge(taken, found)
    return taken


def _merge(taken: list[PersonalMatch], found: list[PersonalMatch]) -> list[PersonalMatch]:
    """Return both in order of their positions, without those of `found` that overlap one of `taken`."""
    free, position = [], 0
    for each in found:
        while position < len(taken) and taken[position].end <= each.start:
            position += 1
        if position == len(taken) or taken[position].start >= each.end:
            free.append(each)
    return sorted([*taken, *free], key=lambda each: each.start)


def _find_emails(text: str) -> Iterator[tuple[int, int]]:
    for match in _EMAIL.finditer(text):
        local = match.group().partition("@")[0]
        if not local.startswith(".") and not local.endswith(".") and ".." not in local:
            yield match.span()


def _find_ibans(text: str) -> Iterator[tuple[int, int]]:
    for match in _IBAN.finditer(text):
        length = _IBAN_LENGTHS.get(match.group()[:2])
        positions = [position for position in range(*match.span()) if text[position] != " "]
        if length is None or len(positions) < length:
            continue
        end = positions[length - 1] + 1
        compact = text[match.start() : end].replace(" ", "")
        digits = "".join(str(int(each, 36)) for each in compact[4:] + compact[:4])
        if int(digits) % 97 == 1 and not text[end : end + 1].isalnum():
            yield match.start(), end


def _find_cards(text: str) -> Iterator[tuple[int, int]]:
    for match in _CARD.finditer(text):
        digits = re.sub(r"\D", "", match.group())
        if _CARD_FORMS.fullmatch(digits) and is_luhn(digits):
            yield match.span()


def is_luhn(digits: str) -> bool:
    """Return whether the last digit is the check digit of the others, by Luhn's formula (ISO/IEC 7812)."""
    doubled = [sum(divmod(2 * int(each), 10)) for each in digits[-2::-2]]
    return (sum(doubled) + sum(map(int, digits[-1::-2]))) % 10 == 0


def _find_ips(text: str) -> Iterator[tuple[int, int]]:
    for match in _IP.finditer(text):
        found = match.group()
        if ":" in found and (found.count(":") < 2 or not any(each.isdigit() for each in found)):
            continue
        try:
            ipaddress.ip_address(found)
        except ValueError:
            continue
        yield match.span()


def _find_phones(text: str) -> Iterator[tuple[int, int]]:
    for match in _PHONE.finditer(text):
        found = match.group()
        digits = sum(each.isdigit() for each in found)
        is_date = _DATE.fullmatch(found) is not None
        if MIN_PHONE_DIGITS <= digits <= MAX_PHONE_DIGITS and not is_date and _PHONE_FORMS.fullmatch(found):
            yield match.span()


_FINDERS: Mapping[str, Callable[[str], Iterator[tuple[int, int]]]] = {
    "email": _find_emails,
    "iban": _find_ibans,
    "card": _find_cards,
    "ip": _find_ips,
    "phone": _find_phones,
}
