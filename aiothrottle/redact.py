"""Hides secrets in the arguments that error messages show. No other module decides this."""

import re

__all__ = ["redact", "shown"]

_HOST = r"(?:\[[0-9a-f:.]+\]|[\w.%-]+)(?::\d{1,5})?"
_HOSTS = rf"{_HOST}(?:,{_HOST})*"
_SCHEME = r"[a-z][a-z0-9+.-]*://"
# An "@" after the authority may belong to a password with a "/", "?" or "#" in it.
_ADDRESS = re.compile(
    rf"(?P<scheme>{_SCHEME})(?:[^/?#\s]*@)?(?P<hosts>(?:{_HOSTS})?)(?:[/?#][^@\s]*)?", re.IGNORECASE
)
_BARE = re.compile(_HOSTS, re.IGNORECASE)
_BEGINNING = re.compile(_SCHEME, re.IGNORECASE)
# Signs of a possible secret in a text that is no address.
_SECRETIVE = re.compile(r"://|@|passw|secret", re.IGNORECASE)


def redact(text: str) -> str:
    """Return the scheme and the hosts of an address, and nothing that may be a secret.

    For a malformed address, only the scheme is returned.

    >>> redact("redis://me:secret@example.org:6379/0?password=secret")
    'redis://example.org:6379'
    >>> redact("redis://:sec/ret@example.org")
    'redis://***'
    """
    if address := _ADDRESS.fullmatch(text):
        return f"{address['scheme']}{address['hosts']}"
    if _BARE.fullmatch(text):
        return text
    scheme = _BEGINNING.match(text)
    return f"{scheme[0] if scheme else ''}***"


def shown(value: object) -> str:
    """Return the `repr` of an argument for a message, or less if it may contain a secret.

    >>> shown(5), shown("redis://:pw@localhost"), shown({"url": "redis://:pw@localhost"})
    ('5', "'redis://localhost'", 'a dict')
    """
    text = repr(value)
    if not _SECRETIVE.search(text):
        return text
    if isinstance(value, str):
        return repr(redact(value))
    return f"a {type(value).__qualname__}"
