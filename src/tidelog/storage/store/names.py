"""Channel names as file names: readable where possible, unambiguous always."""

from __future__ import annotations

from urllib.parse import quote, unquote

_NAME_BYTES_MAX = 200


def escape_name(name: str) -> str:
    """A file name for a channel: letters, digits, `-`, `_` and inner dots stay, the rest is %-escaped.

    A leading dot is escaped, so no name is hidden, `.` or `..`; the empty name is a bare `%`. Long names are cut; a
    caller that needs them unique adds the channel id.
    """
    if not name:
        return "%"
    escaped = quote(name, safe="", errors="surrogatepass").replace("~", "%7E")
    if escaped.startswith("."):
        escaped = "%2E" + escaped[1:]
    if len(escaped) <= _NAME_BYTES_MAX:
        return escaped
    cut = escaped[:_NAME_BYTES_MAX]
    return cut[: cut.rindex("%")] if "%" in cut[-2:] else cut


def unescape_name(escaped: str) -> str:
    """The name again, or as much of it as a cut left."""
    return "" if escaped == "%" else unquote(escaped, errors="replace")
