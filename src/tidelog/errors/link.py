"""Errors of the link between nodes: what was refused, by whom, and whether it may have happened all the same."""

from __future__ import annotations

from tidelog.errors.base import LogError

# --- of one call or message ------------------------------------------------------------------------


class LinkClosed(LogError):
    """The link ended, or is ending, before this was answered.

    Not definite: what was sent may have been done. Ask again on the next link, and only what may be done twice.
    """

    code = "link_closed"
    retriable = True
    definite = False

    def __init__(self, *, peer: str, reason: str) -> None:
        super().__init__(f"the link to {peer} is closed: {reason}; look whether it was done before asking again")
        self.peer = peer
        self.reason = reason


class LinkBusy(LogError):
    """A queue of the link is full: the peer takes less than it is given. Nothing was sent; wait, then try again."""

    code = "link_busy"
    retriable = True

    def __init__(self, *, peer: str, waiting: int, limit: int) -> None:
        super().__init__(f"{waiting} of at most {limit} wait for {peer} already; send less, or wait and try again")
        self.peer = peer
        self.waiting = waiting
        self.limit = limit


class UnknownMethod(LogError):
    """The peer knows no request or message of this kind, most likely because it runs an older version."""

    code = "unknown_method"

    def __init__(self, *, kind: int) -> None:
        super().__init__(f"there is no request of kind {kind} here; upgrade this node, or ask another one")
        self.kind = kind


class BodyTooLarge(LogError):
    """A body is larger than the receiver takes. Nothing of it was sent; cut it into parts."""

    code = "body_too_large"

    def __init__(self, *, size: int, bytes_max: int) -> None:
        super().__init__(f"a body of {size} bytes is over the receiver's limit of {bytes_max}; cut it into parts")
        self.size = size
        self.bytes_max = bytes_max


class HandlerFailed(LogError):
    """The side that was asked has a bug or a fault that has no name. Not definite: it may have done a part."""

    code = "handler_failed"
    definite = False

    def __init__(self, *, kind: int, problem: str) -> None:
        super().__init__(f"the handler of request {kind} failed with {problem}; its own log says more")
        self.kind = kind
        self.problem = problem


class PeerRefused(LogError):
    """The other side answered with an error, whose code, words and promises these are.

    `code`, `retriable` and `definite` are those of the error over there, so a caller decides as if it were local.
    """

    code = "peer_refused"

    def __init__(self, *, code: str, message: str, retriable: bool, definite: bool) -> None:
        super().__init__(message)
        self.message = message
        # What is a fact of the class for every other error is one of the answer here.
        vars(self).update(code=code, retriable=retriable, definite=definite)


# --- of the link itself ----------------------------------------------------------------------------


class BadFrame(LogError):
    """Bytes of a peer break the rules of the link, so nothing after them can be trusted; the link is closed."""

    code = "bad_frame"

    def __init__(self, *, problem: str) -> None:
        super().__init__(f"{problem}; this is no peer of ours, or a bug: note the versions of both sides")
        self.problem = problem


class WrongVersion(LogError):
    """Two nodes have no version of the link in common. Upgrade the older one."""

    code = "wrong_version"

    def __init__(self, *, ours: str, theirs: str) -> None:
        super().__init__(f"we speak versions {ours} of the link and they speak {theirs}; upgrade the older node")
        self.ours = ours
        self.theirs = theirs


class WrongCluster(LogError):
    """Two nodes belong to different clusters. Correct the address, or wipe the node that should move."""

    code = "wrong_cluster"

    def __init__(self, *, ours: str, theirs: str) -> None:
        super().__init__(f"we are of cluster {ours} and they are of {theirs}; correct the address or the data folder")
        self.ours = ours
        self.theirs = theirs


class WrongPeer(LogError):
    """Whoever answered, or called, is not who it was said to be. Correct the address or the certificate."""

    code = "wrong_peer"

    def __init__(self, *, expected: str, got: str) -> None:
        super().__init__(f"{expected} was expected and {got} is there; correct the address or the certificate")
        self.expected = expected
        self.got = got


class TlsFailed(LogError):
    """No secure connection came about: a certificate is missing, expired, or of another tree; or it is no TLS."""

    code = "tls_failed"
    retriable = True

    def __init__(self, *, peer: str, problem: str) -> None:
        super().__init__(
            f"no TLS connection with {peer}: {problem}; check that both certificates are valid and of the nodes' tree"
        )
        self.peer = peer
        self.problem = problem


class PeerUnreachable(LogError):
    """Nobody answers at this address. Start the node, or correct the address."""

    code = "peer_unreachable"
    retriable = True

    def __init__(self, *, address: str, problem: str) -> None:
        super().__init__(f"{address} cannot be reached: {problem}; start the node there or correct the address")
        self.address = address
        self.problem = problem


class AddressTaken(LogError):
    """The address to listen on is in use, most likely by another process of the same node."""

    code = "address_taken"

    def __init__(self, *, address: str, problem: str) -> None:
        super().__init__(f"cannot listen on {address}: {problem}; stop the other process or choose another port")
        self.address = address
        self.problem = problem
