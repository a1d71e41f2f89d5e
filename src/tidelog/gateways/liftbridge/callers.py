"""Authenticates callers of the gateway by certificate, like native clients.

LCA1  Without `insecure_dev` a caller is the client or operator that its certificate names, issued by the nodes'
     authority and checked for revocation on every call. Callers without certificates are accepted only if the node
     was configured with the client they count as (`anonymous`), and have that client's grants.
LCA2  The grants that each call needs are those in docs/protocols/client.md: the gateway permits nothing that the link
    would not.
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
    """Authenticates the caller of every call."""

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
        """The caller's principal; raises a typed refusal if it cannot be authenticated (LCA1)."""
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
