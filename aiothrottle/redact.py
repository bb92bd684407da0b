"""What may be shown of an address that may have a password in it."""

import re

__all__ = ["redact"]

_HOST = r"(?:\[[0-9a-f:.]+\]|[\w.%-]+)(?::\d{1,5})?"
_HOSTS = rf"{_HOST}(?:,{_HOST})*"
_SCHEME = r"[a-z][a-z0-9+.-]*://"
# An "@" behind the authority is that of a password with a "/", "?" or "#" in it, or may be.
_ADDRESS = re.compile(
    rf"(?P<scheme>{_SCHEME})(?:[^/?#\s]*@)?(?P<hosts>(?:{_HOSTS})?)(?:[/?#][^@\s]*)?", re.IGNORECASE
)
_BARE = re.compile(_HOSTS, re.IGNORECASE)
_BEGINNING = re.compile(_SCHEME, re.IGNORECASE)


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
