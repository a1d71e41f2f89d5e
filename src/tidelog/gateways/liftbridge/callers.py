"""Who calls the Liftbridge gateway, and what it may do: by its certificate and its grants, like a native client.

LCA1  Without `insecure_dev` a caller is who its certificate says, a client's or an operator's of the nodes' authority,
     asked on every call; a revoked one is nobody. Callers without certificates are let in only where the node was told
     as whom (`anonymous`), and may do what that client was granted.
LCA2  What needs which grant is the table of docs/protocols/client.md: the gateway gives nobody more than the link
    would.
"""

from __future__ import annotations

from typing import Any, Final

from tidelog.cluster.clients.access import ClientAccess
from tidelog.errors import WrongKind
from tidelog.gateways.liftbridge.refusals import GatewayRefusedError, Status
from tidelog.pki.identity import identity_of_certificate, parse_certificate
from tidelog.pki.revocation import RevocationList
from tidelog.storage.log.writer import wall_clock_us

_KINDS: Final = ("client", "operator")


class Callers:
    """Asked on every call."""

    def __init__(
        self,
        access: ClientAccess,
        *,
        insecure_dev: bool = False,
        anonymous: str | None = None,
        fleet: str | None = None,
        revocations: RevocationList | None = None,
    ) -> None:
        self.access = access
        self._insecure_dev = insecure_dev
        self._anonymous = anonymous
        self._fleet = fleet
        self._revocations = revocations

    def principal(self, context: Any) -> str:
        """Raises a typed refusal for whoever is nobody (LCA1)."""
        certificates = context.auth_context().get("x509_pem_cert", ())
        if certificates:
            certificate = parse_certificate(certificates[0])
            identity = identity_of_certificate(certificate, fleet=self._fleet)
            if identity.kind not in _KINDS:
                raise WrongKind(name=identity.name, kind=identity.kind, needed=" or ".join(_KINDS))
            if self._revocations is not None:
                self._revocations.require_good(certificate.serial_number, wall_clock_us())
            return f"{identity.kind}:{identity.name}"
        if self._insecure_dev or self._anonymous is not None:
            return f"client:{self._anonymous or 'liftbridge'}"
        raise GatewayRefusedError(
            Status.UNAUTHENTICATED, "no client certificate; `tidelog ca issue NAME --client` makes one"
        )
