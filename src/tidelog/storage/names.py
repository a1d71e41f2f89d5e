"""Channel names as file names: readable where possible, unambiguous always."""

from __future__ import annotations

from urllib.parse import quote, unquote

_NAME_BYTES_MAX = 200


def escape_name(name: str) -> str:
    """A file name for a channel: letters, digits, `-`, `_` and inner dots stay, the rest is %-escaped.

    A leading dot is escaped, so no name is hidden, `.` or `..`. Long names are cut; whoever needs
    them unique adds the channel id.
    """
    escaped = quote(name, safe="")
    if escaped.startswith("."):
        escaped = "%2E" + escaped[1:]
    return escaped.replace("~", "%7E")[:_NAME_BYTES_MAX]


def unescape_name(escaped: str) -> str:
    return unquote(escaped)
