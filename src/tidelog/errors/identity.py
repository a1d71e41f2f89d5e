"""Errors of who somebody is: certificates, names, authorities."""

from __future__ import annotations

from tidelog.errors.base import LogError


class BadIdentity(LogError):
    """A certificate does not say, without doubt, who its holder is. Issue a proper one."""

    code = "bad_identity"

    def __init__(self, *, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem


class WeakCertificate(BadIdentity):
    """A certificate is signed or keyed with something that can be forged: SHA-1, a short RSA key."""

    code = "weak_certificate"


class WrongKind(LogError):
    """A boat came to the door of the nodes, or a node to the door of the boats."""

    code = "wrong_kind"

    def __init__(self, *, name: str, kind: str, needed: str) -> None:
        super().__init__(f"the certificate of {name} is a {kind}'s; a {needed}'s is needed here")
        self.name = name
        self.kind = kind
        self.needed = needed


class CertificateExpired(LogError):
    """The certificate's time is over. Renew it with `tidelog ca renew`."""

    code = "certificate_expired"

    def __init__(self, *, subject: str, expired: str, now: str) -> None:
        super().__init__(
            f"the certificate of {subject} expired at {expired} and the clock says {now}; "
            "renew it with `tidelog ca renew`, or set the clock"
        )
        self.subject = subject
        self.expired = expired
        self.now = now


class CertificateNotYetValid(LogError):
    """The certificate's time has not come, which nearly always means that a clock is wrong."""

    code = "certificate_not_yet_valid"
    retriable = True

    def __init__(self, *, subject: str, begins: str, now: str) -> None:
        super().__init__(
            f"the certificate of {subject} is valid from {begins} but the clock says {now}; set the clock first"
        )
        self.subject = subject
        self.begins = begins
        self.now = now


class CertificateRevoked(LogError):
    """The certificate is on the revocation list. Issue a new one if its holder should come back."""

    code = "certificate_revoked"

    def __init__(self, *, serial: str, reason: str) -> None:
        super().__init__(f"certificate {serial} is revoked ({reason or 'no reason given'}); issue a new one")
        self.serial = serial
        self.reason = reason


class CertificateRejected(LogError):
    """The cloud's TLS does not take this boat's certificate. The message says which, why and what helps."""

    code = "certificate_rejected"

    def __init__(self, *, name: str, alert: str, remedy: str) -> None:
        super().__init__(f"the cloud refuses the certificate of {name}: {remedy} (TLS says {alert})")
        self.name = name
        self.alert = alert
        self.remedy = remedy


class CloudNotTrusted(LogError):
    """The cloud's certificate is not good by the boat's authority and clock. Compare ca.crt, address and clock."""

    code = "cloud_not_trusted"

    def __init__(self, *, address: str, problem: str) -> None:
        super().__init__(
            f"the certificate that {address} shows is not good here: {problem}; replication.tls.ca must be the nodes' "
            "ca.crt, the address a --server-name of the certificate, and the boat's clock right"
        )
        self.address = address
        self.problem = problem


class BadRevocationList(LogError):
    """A revocation list cannot be read and there is no earlier one to keep to, so nobody is let in."""

    code = "bad_revocation_list"

    def __init__(self, *, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path
        self.problem = problem


class NameTaken(LogError):
    """Somebody else has this name, or one that differs from it only in case."""

    code = "name_taken"

    def __init__(self, *, name: str, held: str, remedy: str) -> None:
        super().__init__(f"{name} is taken by {held}; {remedy}")
        self.name = name
        self.held = held
        self.remedy = remedy


class TooManyNames(LogError):
    """As many different names are known as the limit allows, and this would be one more."""

    code = "too_many_names"
    retriable = True

    def __init__(self, *, names_max: int) -> None:
        super().__init__(f"{names_max} names are known and no more are allowed; raise the limit or remove some")
        self.names_max = names_max


class AuthorityError(LogError):
    """A certificate authority's folder cannot do what was asked of it."""

    code = "authority_error"

    def __init__(self, *, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path
        self.problem = problem


class RequestRefused(LogError):
    """An HTTP request was answered with an error; `reason` is the code in its body. Read `detail`, and ask again."""

    code = "request_refused"

    def __init__(self, *, status: int, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.reason = reason
        self.detail = detail
