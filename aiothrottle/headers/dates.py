"""Parses dates as servers write them: RFC 9110 (three forms), RFC 5322, ISO 8601, JavaScript."""

import re
from datetime import UTC, datetime, timedelta

# The longest form, JavaScript's with the name of the zone, takes about 70 characters.
_LONGEST = 100
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_NUMBERS = {month: number for number, month in enumerate(_MONTHS, 1)}
# In hours (RFC 5322, section 4.3). Any other zone is unknown and not guessed.
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
# No two adjacent repetitions can match the same blanks: backtracking over all ways to divide them
# would take more than linear time.
_ZONE = r"(?P<zone>[a-z]*+)(?: *+(?P<offset>[+-][0-9]{2}(?::?[0-9]{2})?))?(?: *+\([^()]*+\))?"
# Where the zone is required: a truncated date is no date.
_REQUIRED_ZONE = rf"(?=[a-z+-]){_ZONE}"
_WEEKDAY = r"(?:mon|tue|wed|thu|fri|sat|sun)[a-z]{0,6}"
_DAY = r"(?P<day>[0-9]{1,2})"
_MONTH = (
    "(?P<month>jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|"
    "sept?(?:ember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)"
)
# The only form that RFC 9110 lets servers send, and by far the most common.
_PREFERRED = re.compile(
    r"[A-Z][a-z]{2}, ([0-9]{2}) ([A-Z][a-z]{2}) ([0-9]{4}) "
    r"((?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]) GMT"
)
_FORMS = [
    re.compile(form, re.IGNORECASE | re.ASCII)
    for form in (
        # Sun, 06 Nov 1994 08:49:37 GMT, and its kin of RFC 850 and RFC 5322
        rf"(?:{_WEEKDAY},? ++)?{_DAY}[ -]{_MONTH}[ -]{_ANY_YEAR} ++{_TIME} *+{_REQUIRED_ZONE}",
        # Sun Nov  6 08:49:37 1994
        rf"(?:{_WEEKDAY},? ++)?{_MONTH} ++{_DAY} ++{_TIME} ++(?:{_ZONE} ++)?{_YEAR}",
        # Sun Nov 06 1994 08:49:37 GMT+0000 (Coordinated Universal Time)
        rf"(?:{_WEEKDAY},? ++)?{_MONTH} ++{_DAY},? ++{_YEAR} ++{_TIME} *+{_REQUIRED_ZONE}",
        # 1994-11-06T08:49:37.000Z
        rf"{_ISO_DATE}(?:T| ++)(?=[0-9]{{2}}:){_TIME} *+{_ZONE}",
    )
]  # fmt: skip


def parse_http_date(value: str, now: datetime | None = None) -> datetime | None:
    """Parse an HTTP-date (RFC 9110, section 5.6.7), or what servers send in place of one.

    Args:
        value: Any of the three forms, or a date of RFC 5322, ISO 8601 or JavaScript. A wrong
            weekday and lower case are accepted. asctime and ISO 8601 may omit the zone: it is UTC.
        now: Resolves a year of two digits, which is never more than 50 years ahead of it. Without
            it, 69 to 99 are in the past century.

    Returns:
        An aware datetime; None if the value is no date, or is in an unknown zone.

    >>> parse_http_date("Sunday, 06-Nov-94 08:49:37 GMT")
    datetime.datetime(1994, 11, 6, 8, 49, 37, tzinfo=datetime.timezone.utc)
    """
    return parse_date(value.strip(), now)


def parse_date(text: str, now: datetime | None = None) -> datetime | None:
    """Parse a date in any form; return None if it is none."""
    if not 16 <= len(text) <= _LONGEST:
        return None
    try:
        match = _PREFERRED.fullmatch(text)
        if match:
            day, month, year, time = match.groups()
            # Takes half the time of six calls of int().
            return datetime.fromisoformat(f"{year}-{_NUMBERS[month.lower()]:02}-{day}T{time}Z")
        for form in _FORMS:
            match = form.fullmatch(text)
            if match:
                return _datetime(match, now)
    except (KeyError, ValueError, OverflowError):
        pass  # an unknown zone, the 31st of November, the end of the calendar
    return None


def _datetime(match: re.Match[str], now: datetime | None) -> datetime:
    month, second = match["month"], int(match["second"] or 0)
    rest = (
        int(month) if month.isdigit() else _NUMBERS[month[:3].lower()],
        int(match["day"]),
        int(match["hour"]),
        int(match["minute"]),
        # The grammar has leap seconds, Python's calendar has none.
        59 if second == 60 else second,
    )
    year = int(match["year"])
    if len(match["year"]) == 2:
        year = _with_century(year, rest, now)
    fraction = int((match["fraction"] or "0")[:6].ljust(6, "0"))
    date = datetime(year, *rest, fraction, UTC)
    zone, offset = match["zone"], match["offset"]
    if zone or offset or second == 60:
        hours = _ZONES[(zone or "").lower()]
        date += timedelta(hours=-hours, seconds=second == 60) - _offset(offset)
    return date


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
