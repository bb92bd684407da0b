"""Output to terminals: untrusted text cannot move the cursor, and passwords are hidden."""

import re

__all__ = ["printable", "without_credentials"]

# The part before the "@" of an authority, which ends at a "/", "?" or "#".
_CREDENTIALS = re.compile(r"(?<=//)[^/?#\s]*@")


def printable(text: str) -> str:
    r"""Escape characters that a terminal could take for a command, or would not show.

    >>> printable("a\x1b[2Jb")
    'a\\x1b[2Jb'
    """
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def without_credentials(text: str) -> str:
    """Hide the user and the password of all URLs in the text.

    >>> without_credentials("https://me:secret@example.org/@you")
    'https://***@example.org/@you'
    """
    return _CREDENTIALS.sub("***@", text) if "@" in text else text
