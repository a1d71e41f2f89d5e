"""Errors of identity: certificates, names, authorities, and refused HTTP requests."""

from __future__ import annotations

from tidelog.errors.base import LogError


class BadIdentity(LogError):
    """A certificate does not identify its holder unambiguously. Issue a new one with `tidelog ca issue`."""

    template = "{problem}"
    problem: str


class WeakCertificate(BadIdentity):
    """A certificate uses an algorithm or a key that can be forged, such as SHA-1 or a short RSA key."""


class WrongKind(LogError):
    """A boat's certificate was shown where a node's is needed, or the other way round."""

    template = "the certificate of {name} is a {kind}'s; a {needed}'s is needed here"
    name: str
    kind: str
    needed: str


class CertificateExpired(LogError):
    """The certificate has expired. Renew it with `tidelog ca renew`."""

    template = (
        "the certificate of {subject} expired at {expired} and the clock says {now}; renew it with `tidelog ca "
        "renew`, or set the clock"
    )
    subject: str
    expired: str
    now: str


class CertificateNotYetValid(LogError):
    """The certificate is not valid yet, which nearly always means that a clock is wrong."""

    retriable = True
    template = "the certificate of {subject} is valid from {begins} but the clock says {now}; set the clock first"
    subject: str
    begins: str
    now: str


class CertificateRevoked(LogError):
    """The certificate is on the revocation list. Issue a new one if its holder should come back."""

    serial: str
    reason: str

    def _message(self) -> str:
        return f"certificate {self.serial} is revoked ({self.reason or 'no reason given'}); issue a new one"


class CertificateRejected(LogError):
    """The cloud rejected this boat's certificate. The message says why and what helps."""

    template = "the cloud refuses the certificate of {name}: {remedy} (TLS says {alert})"
    name: str
    alert: str
    remedy: str


class CloudNotTrusted(LogError):
    """The boat cannot verify the certificate of the cloud. Check ca.crt, the address and the clock."""

    template = (
        "the certificate that {address} shows cannot be verified: {problem}; replication.tls.ca must be the nodes' "
        "ca.crt, the address a --server-name of the certificate, and the boat's clock right"
    )
    address: str
    problem: str


class BadRevocationList(LogError):
    """A revocation list cannot be read and no earlier version of it was, so all connections are refused."""

    template = "{path}: {problem}"
    path: str
    problem: str


class NameTaken(LogError):
    """This name, or one that differs only in case, is already in use."""

    template = "{name} is taken by {held}; {remedy}"
    name: str
    held: str
    remedy: str


class TooManyNames(LogError):
    """The limit of different names is reached."""

    retriable = True
    template = "{names_max} names are known and no more are allowed; raise the limit or remove some"
    names_max: int


class AuthorityError(LogError):
    """A request to a certificate authority cannot be carried out with the files in its folder."""

    template = "{path}: {problem}"
    path: str
    problem: str


class RequestRefused(LogError):
    """An HTTP request was answered with an error; `reason` is the code in its body. `detail` says what to change."""

    template = "{detail}"
    status: int
    reason: str
    detail: str
