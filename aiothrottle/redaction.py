"""What may be shown of what a user gave: never a password.

The one place that decides it, for messages of errors.
"""

import re

__all__ = ["redact", "shown"]

_HIDDEN = "***"
_SCHEME = re.compile(r"[A-Za-z][A-Za-z\d+.-]*://")
# A host with or without a port, or several of them.
_HOSTS = re.compile(r"[^\s:,=\[\]]+(:\d+)?(,[^\s:,=\[\]]+(:\d+)?)*|\[[\da-fA-F:.]+\](:\d+)?")
# Where there may be a secret in a text that is no address.
_SECRETIVE = re.compile(r"://|@|passw|secret", re.IGNORECASE)


def redact(address: str) -> str:
    """Give the scheme and the host of an address, and nothing that may be a part of a secret.

    Also of one whose password should have been escaped and was not.

    >>> redact("redis://:pa/ss@localhost:6379/0"), redact("redis://localhost/0?password=pw")
    ('redis://***@localhost:6379', 'redis://localhost')
    >>> redact("redis://:pw"), redact("ann:pw@localhost")
    ('redis://***', '***@localhost')
    """
    begin = _SCHEME.match(address)
    scheme, rest = ("", address) if begin is None else (begin[0], address[begin.end() :])
    user, at, rest = rest.rpartition("@")
    host = re.split(r"[/?#]", rest, maxsplit=1)[0]
    # An "@" behind one of these may be one of a query, or of options: what follows is anything.
    if set(user) & set("?#=") or not (_HOSTS.fullmatch(host) or (at and not host)):
        return f"{scheme}{_HIDDEN}"
    return f"{scheme}{_HIDDEN + at if at else ''}{host}"


def shown(value: object) -> str:
    """Give a wrong argument as a message may show it: its `repr`, unless that may tell a secret.

    >>> shown(5), shown("redis://:pw@localhost"), shown({"url": "redis://:pw@localhost"})
    ('5', "'redis://***@localhost'", 'a dict')
    """
    text = repr(value)
    if not _SECRETIVE.search(text):
        return text
    if isinstance(value, str):
        return repr(redact(value))
    return f"a {type(value).__qualname__}"
