"""Permissions: a certificate names the principal, the grants of the catalog say what it may do.

Operators and nodes may do everything: nodes act for principals that other nodes have checked, and an operator could
give itself any grant. A client may do what it was granted, by scope and channel. Without authentication
(`--insecure-dev`), every caller may do everything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tidelog.core.catalog import Catalog
from tidelog.errors import AccessDenied

ADMIN: Final = "admin:channels"
READ: Final = "read:data"
WRITE: Final = "write:data"
ANY_OF_THEM: Final = (READ, WRITE, ADMIN)
"""Each of these scopes is enough to know that a channel exists and which node leads it."""
ALL_CHANNELS: Final = "*"
"""As a name: only a grant for all channels matches it."""

_MAY_EVERYTHING: Final = frozenset({"operator", "node"})


class ClientAccess:
    """Checked for every request; nothing is cached, so a revocation takes effect at once."""

    def __init__(self, *, catalog: Callable[[], Catalog], now_ms: Callable[[], int], insecure_dev: bool) -> None:
        self._catalog = catalog
        self._now_ms = now_ms
        self._insecure_dev = insecure_dev

    def may_everything(self, principal: str) -> bool:
        return self._insecure_dev or principal.partition(":")[0] in _MAY_EVERYTHING

    def allows(self, principal: str, channel: str, *scopes: str) -> bool:
        """Whether one of the scopes is granted."""
        if self.may_everything(principal):
            return True
        catalog, now_ms = self._catalog(), self._now_ms()
        return any(catalog.allows(principal, scope, channel, now_ms) for scope in scopes)

    def require(self, principal: str, channel: str, *scopes: str) -> None:
        """Raise `AccessDenied` unless one of the scopes is granted."""
        if not self.allows(principal, channel, *scopes):
            raise AccessDenied(principal=principal, scope=" or ".join(scopes), channel=channel)

    def require_operator(self, principal: str, channel: str, deed: str) -> None:
        """Raise `AccessDenied` for actions that no grant can give."""
        if not (self._insecure_dev or principal.startswith("operator:")):
            raise AccessDenied(principal=principal, scope=deed, channel=channel)
