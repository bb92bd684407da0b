"""Dates as servers write them: the three forms of RFC 9110, RFC 5322, ISO 8601 and JavaScript."""

import re
from datetime import UTC, datetime, timedelta

__all__ = ["parse_date", "parse_http_date"]

# The longest form, JavaScript's with the name of the zone, needs some 70 characters.
_LONGEST = 100
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_NUMBERS = {month: number for number, month in enumerate(_MONTHS, 1)}
# In hours (RFC 5322, section 4.3). Any other name of a zone is unknown: no guess.
_ZONES = {
    "": 0, "z": 0, "ut": 0, "utc": 0, "gmt": 0,
    "est": -5, "edt": -4, "cst": -6, "cdt": -5, "mst": -7, "mdt": -6, "pst": -8, "pdt": -7,
}  # fmt: skip

_TIME = (
    r"(?P<hour>[0-9]{1,2}):(?P<minute>[0-9]{2})"
    r"(?::(?P<second>[0-9]{2})(?:\.(?P<fraction>[0-9]++))?)?"
)
_YEAR = "(?P<year>[0-9]{4})"
_ISO_DATE = rf"{_YEAR}-(?P<month>[0-9]{{2}})-(?P<day>[0-9]{{2}})"
_ANY_YEAR = "(?P<year>[0-9]{4}|[0-9]{2})"
# No two repetitions that could share the same blanks stand beside each other: to try all ways of
# sharing them would take more than linear time.
_ZONE = r"(?P<zone>[a-z]*+)(?: *+(?P<offset>[+-][0-9]{2}(?::?[0-9]{2})?))?(?: *+\([^()]*+\))?"
# Where it has to be said: a date that was cut off is no date.
_SAID_ZONE = rf"(?=[a-z+-]){_ZONE}"
_WEEKDAY = r"(?:mon|tue|wed|thu|fri|sat|sun)[a-z]{0,6}"
_DAY = r"(?P<day>[0-9]{1,2})"
_MONTH = (
    "(?P<month>jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|"
    "sept?(?:ember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)"
)
# The one form that is to be written today, and nearly always is.
_PREFERRED = re.compile(
    r"[A-Z][a-z]{2}, ([0-9]{2}) ([A-Z][a-z]{2}) ([0-9]{4}) "
    r"((?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]) GMT"
)
_FORMS = [
    re.compile(form, re.IGNORECASE | re.ASCII)
    for form in (
        # Sun, 06 Nov 1994 08:49:37 GMT, and its kin of RFC 850 and RFC 5322
        rf"(?:{_WEEKDAY},? ++)?{_DAY}[ -]{_MONTH}[ -]{_ANY_YEAR} ++{_TIME} *+{_SAID_ZONE}",
        # Sun Nov  6 08:49:37 1994
        rf"(?:{_WEEKDAY},? ++)?{_MONTH} ++{_DAY} ++{_TIME} ++(?:{_ZONE} ++)?{_YEAR}",
        # Sun Nov 06 1994 08:49:37 GMT+0000 (Coordinated Universal Time)
        rf"(?:{_WEEKDAY},? ++)?{_MONTH} ++{_DAY},? ++{_YEAR} ++{_TIME} *+{_SAID_ZONE}",
        # 1994-11-06T08:49:37.000Z
        rf"{_ISO_DATE}(?:T| ++)(?=[0-9]{{2}}:){_TIME} *+{_ZONE}",
    )
]  # fmt: skip


def parse_http_date(value: str, now: datetime | None = None) -> datetime | None:
    """Read an HTTP-date (RFC 9110, section 5.6.7), and what servers send in place of one.

    Args:
        value: Any of the three forms; a date of RFC 5322, ISO 8601 or JavaScript is read too. A
            wrong weekday and small letters do no harm. asctime and ISO 8601 may leave out the
            zone: it is UTC.
        now: For a year of two digits: it is never more than 50 years ahead of this. Without it,
            69 to 99 are in the past century.

    Returns:
        An aware datetime; None for what is no date, or is in an unknown zone.

    >>> parse_http_date("Sunday, 06-Nov-94 08:49:37 GMT")
    datetime.datetime(1994, 11, 6, 8, 49, 37, tzinfo=datetime.timezone.utc)
    """
    return parse_date(value.strip(), now)


def parse_date(text: str, now: datetime | None = None) -> datetime | None:
    """Read a date in any form; None for what is none."""
    if not 16 <= len(text) <= _LONGEST:
        return None
    try:
        match = _PREFERRED.fullmatch(text)
        if match:
            day, month, year, time = match.groups()
            # Half the time of six calls of int().
            return datetime.fromisoformat(f"{year}-{_NUMBERS[month.lower()]:02}-{day}T{time}Z")
        for form in _FORMS:
            match = form.fullmatch(text)
            if match:
                return _moment(match, now)
    except (KeyError, ValueError, OverflowError):
        pass  # an unknown zone, the 31st of November, the end of the calendar
    return None


def _moment(match: re.Match[str], now: datetime | None) -> datetime:
    month, second = match["month"], int(match["second"] or 0)
    rest = (
        int(month) if month.isdigit() else _NUMBERS[month[:3].lower()],
        int(match["day"]),
        int(match["hour"]),
        int(match["minute"]),
        # A leap second is in the grammar, but not in the calendar of Python.
        59 if second == 60 else second,
    )
    year = int(match["year"])
    if len(match["year"]) == 2:
        year = _with_century(year, rest, now)
    fraction = int((match["fraction"] or "0")[:6].ljust(6, "0"))
    moment = datetime(year, *rest, fraction, UTC)
    zone, offset = match["zone"], match["offset"]
    if zone or offset or second == 60:
        hours = _ZONES[(zone or "").lower()]
        moment += timedelta(hours=-hours, seconds=second == 60) - _offset(offset)
    return moment


def _offset(text: str | None) -> timedelta:
    if not text:
        return timedelta()
    hours, minutes = int(text[1:3]), int(text[3:].removeprefix(":") or 0)
    if hours > 23 or minutes > 59:
        raise ValueError(f"{text} is no offset")
    ahead = timedelta(hours=hours, minutes=minutes)
    return -ahead if text[0] == "-" else ahead


def _with_century(year: int, rest: tuple[int, ...], now: datetime | None) -> int:
    if now is None:
        return year + (1900 if year >= 69 else 2000)
    now = now.astimezone(UTC)
    year += now.year // 100 * 100
    # RFC 9110: more than 50 years ahead is the latest such year of the past.
    if (year - 50, *rest) > now.timetuple()[:6]:
        return year - 100
    return year + 100 if year + 50 < now.year else year
