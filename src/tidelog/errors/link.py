"""Errors of the link between nodes, and the form in which a client sees errors of a node."""

from __future__ import annotations

from tidelog.errors.base import LogError

# --- of one call or message ------------------------------------------------------------------------


class LinkClosed(LogError):
    """The link closed before the answer arrived.

    Not definite: the request may have been carried out. Send it again on the next link only if it is idempotent.
    """

    retriable = True
    definite = False
    template = "the link to {peer} is closed: {reason}; check whether the request took effect before sending it again"
    peer: str
    reason: str


class LinkBusy(LogError):
    """A queue of the link is full, because the peer reads more slowly than messages are sent. Nothing was sent; wait,
    then try again."""

    retriable = True
    template = "{waiting} of at most {limit} are waiting for {peer}; send less, or wait and try again"
    peer: str
    waiting: int
    limit: int


class UnknownMethod(LogError):
    """The peer does not know this kind of request or message, most likely because it runs an older version."""

    template = "there is no request of kind {kind} here; upgrade this node, or ask another one"
    kind: int


class BodyTooLarge(LogError):
    """A message body is larger than the receiver's limit. Nothing of it was sent; split it."""

    template = "a body of {size} bytes is over the receiver's limit of {bytes_max}; split it"
    size: int
    bytes_max: int


class HandlerFailed(LogError):
    """The handler of a request failed with an unexpected exception. Not definite: it may have done part of its work."""

    definite = False
    template = "the handler of request {kind} failed with {problem}; its own log says more"
    kind: int
    problem: str


class PeerRefused(LogError):
    """The other side answered with an error.

    The message, `code`, `retriable` and `definite` are those of that error, so a caller decides as if it were local.
    """

    def __init__(self, *, code: str, message: str, retriable: bool, definite: bool) -> None:
        self.args = (message,)
        self.message = message
        # Every other error has these as attributes of its class; here they come with the answer.
        vars(self).update(code=code, retriable=retriable, definite=definite)


# --- of the link itself ----------------------------------------------------------------------------


class BadFrame(LogError):
    """A peer sent bytes that violate the link protocol, so nothing after them can be trusted; the link is closed."""

    template = "{problem}; the peer is not a Tidelog node, or this is a bug: report the versions of both sides"
    problem: str


class WrongVersion(LogError):
    """Two nodes have no version of the link in common. Upgrade the older one."""

    template = "this node supports versions {ours} of the link and the peer {theirs}; upgrade the older node"
    ours: str
    theirs: str


class WrongCluster(LogError):
    """Two nodes belong to different clusters. Correct the address, or wipe the node that should change its cluster."""

    template = "this node is in cluster {ours} and the peer in {theirs}; correct the address or the data folder"
    ours: str
    theirs: str


class WrongPeer(LogError):
    """The certificate of the peer names another node than was expected. Correct the address or the certificate."""

    template = "{expected} was expected, but the peer is {got}; correct the address or the certificate"
    expected: str
    got: str


class TlsFailed(LogError):
    """The TLS handshake failed: a certificate is missing, expired or of another authority, or the peer uses no TLS."""

    retriable = True
    template = (
        "no TLS connection with {peer}: {problem}; check that both certificates are valid and signed by the nodes' "
        "authority"
    )
    peer: str
    problem: str


class PeerUnreachable(LogError):
    """Nothing answers at this address. Start the node, or correct the address."""

    retriable = True
    template = "{address} cannot be reached: {problem}; start the node there or correct the address"
    address: str
    problem: str


class AddressTaken(LogError):
    """The address to listen on is in use, most likely by another process of the same node."""

    template = "cannot listen on {address}: {problem}; stop the other process or choose another port"
    address: str
    problem: str
