"""What may be shown of what a user gave: never a password.

The one place that decides it, for messages of errors.
"""

import re

__all__ = ["redact", "shown"]

_HOST = r"(?:\[[0-9a-f:.]+\]|[\w.%-]+)(?::\d{1,5})?"
_HOSTS = rf"{_HOST}(?:,{_HOST})*"
_SCHEME = r"[a-z][a-z0-9+.-]*://"
# An "@" behind the authority is that of a password with a "/", "?" or "#" in it, or may be.
_ADDRESS = re.compile(
    rf"(?P<scheme>{_SCHEME})(?:[^/?#\s]*@)?(?P<hosts>(?:{_HOSTS})?)(?:[/?#][^@\s]*)?", re.IGNORECASE
)
_BARE = re.compile(_HOSTS, re.IGNORECASE)
_BEGINNING = re.compile(_SCHEME, re.IGNORECASE)
# Where there may be a secret in a text that is no address.
_SECRETIVE = re.compile(r"://|@|passw|secret", re.IGNORECASE)


def redact(text: str) -> str:
    """Return where an address leads: its scheme and its hosts, and nothing that may be a secret.

    Of an address that does not have the form of one, only the scheme is returned.

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
    """Return a wrong argument as a message may show it: its `repr`, unless that may tell a secret.

    >>> shown(5), shown("redis://:pw@localhost"), shown({"url": "redis://:pw@localhost"})
    ('5', "'redis://localhost'", 'a dict')
    """
    text = repr(value)
    if not _SECRETIVE.search(text):
        return text
    if isinstance(value, str):
        return repr(redact(value))
    return f"a {type(value).__qualname__}"
