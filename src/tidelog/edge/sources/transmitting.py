"""Putting frames on the bus for HTTP callers: every request is checked before anything is sent.

A boat sends nothing unless its operator allowed it by name, PGN by PGN, and the caller's credential has the scope. Sent
frames are not recorded: the interface does not hear itself.

SB1  A frame is sent only if sending is on, its PGN is allowed, and the rate allows it.
SB2  A message is put on the bus whole or not at all, as far as can be known: a bus that stops taking frames in the
     middle of one is an error that says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tidelog.compat.captures import PGN_MAX, can_id_from_parts_scalar
from tidelog.errors import InvalidConfig, InvalidRecord, RequestRefused, SourceFailed
from tidelog.nmea.fast_packet import FAST_PACKET_BYTES_MAX, split_message
from tidelog.units import parse_duration_us

ISO_REQUEST: Final = 59904
NULL_ADDRESS: Final = 254
"""The address of a device without one, as lplex requests."""
BROADCAST: Final = 255
QUERY_MS: Final = 2_000
QUERY_MS_MAX: Final = 20_000
_PRIORITY_MAX: Final = 7
_REQUEST_PRIORITY: Final = 6

Transmit = Callable[[int, bytes], None]
"""One CAN frame: its id and up to 8 bytes. Raises `SourceFailed`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SendOptions:
    """What a boat may put on its bus."""

    pgns: frozenset[int] | None = frozenset()
    """The allowed PGNs; None: every one. Requests (59904) count by the PGN that they ask for."""
    rate_per_s: float = 10.0
    """Messages per second; as many may also come at once, and at least one."""

    def __post_init__(self) -> None:
        problems = []
        if not 0 < self.rate_per_s <= 1000:
            problems.append("rate_per_s must be above 0 and at most 1000")
        if self.pgns is not None and not all(0 <= pgn <= PGN_MAX for pgn in self.pgns):
            problems.append(f"pgns must be from 0 to {PGN_MAX}")
        if problems:
            raise InvalidConfig(section="send", problems=problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    pgn: int
    destination: int
    timeout_ms: int


class BusSender:
    """Checks and sends. `transmit` returns the function that sends now, None while the source cannot send."""

    def __init__(self, options: SendOptions | None, *, transmit: Callable[[], Transmit | None]) -> None:
        self._options = options
        self._transmit = transmit
        self._tokens = 1.0 if options is None else max(1.0, options.rate_per_s)
        self._refilled_ms: int | None = None
        self._counters: dict[int, int] = {}
        """The sequence counter of the next fast packet, by PGN: three bits, as in NMEA 2000."""
        self.sent = 0
        """Messages put on the bus."""

    def send(self, body: Mapping[str, Any], now_ms: int) -> None:
        """lplex's POST /send. Raises `RequestRefused`."""
        _only(body, ("pgn", "src", "dst", "prio", "data", "bus"))
        pgn = _number(body, "pgn", PGN_MAX)
        source = _number(body, "src", 253, default=0)
        destination = _number(body, "dst", BROADCAST, default=BROADCAST)
        priority = _number(body, "prio", _PRIORITY_MAX, default=_REQUEST_PRIORITY)
        try:
            payload = bytes.fromhex(body.get("data", ""))
        except (ValueError, TypeError):
            raise _bad_body("data is not hex") from None
        if len(payload) > FAST_PACKET_BYTES_MAX:
            raise _bad_body(f"data has {len(payload)} bytes; a message has at most {FAST_PACKET_BYTES_MAX}")
        self._put(pgn, priority, source, destination, payload, allowed_as=pgn, now_ms=now_ms)

    def ask(self, body: Mapping[str, Any], now_ms: int) -> Query:
        """lplex's POST /query: sends the request; the caller waits for the answer."""
        query = read_query(body)
        payload = query.pgn.to_bytes(3, "little")
        self._put(
            *(ISO_REQUEST, _REQUEST_PRIORITY, NULL_ADDRESS, query.destination, payload),
            allowed_as=query.pgn,
            now_ms=now_ms,
        )
        return query

    def _put(
        self, pgn: int, priority: int, source: int, destination: int, payload: bytes, *, allowed_as: int, now_ms: int
    ) -> None:
        try:
            can_id = can_id_from_parts_scalar(priority, pgn, source, destination)
        except InvalidRecord as error:
            raise _bad_body(str(error)) from error
        transmit = self._allowed(allowed_as, now_ms)
        counter = self._counters.get(pgn, 0)
        frames = split_message(pgn, payload, counter=counter)
        if len(frames) > 1:
            self._counters[pgn] = (counter + 1) % 8
        for place, frame in enumerate(frames):
            try:
                transmit(can_id, frame)
            except SourceFailed as error:
                part = f" after {place} of {len(frames)} frames" if place else ""
                detail = f"the bus did not take it{part}: {error}; ask again in a moment"
                raise RequestRefused(status=503, reason="bus_refused", detail=detail) from error
        self.sent += 1

    def _allowed(self, pgn: int, now_ms: int) -> Transmit:
        options = self._options
        if options is None:
            detail = "sending is off on this boat; its operator turns it on with -send-enabled and -send-pgns"
            raise RequestRefused(status=403, reason="send_disabled", detail=detail)
        if options.pgns is not None and pgn not in options.pgns:
            detail = f"PGN {pgn} is not among those this boat may send; its operator adds it to -send-pgns"
            raise RequestRefused(status=403, reason="pgn_not_allowed", detail=detail)
        transmit = self._transmit()
        if transmit is None:
            detail = "this boat reads a file, a simulation, several buses or a broken one; it sends to one bus only"
            raise RequestRefused(status=501, reason="cannot_send", detail=detail)
        burst = max(1.0, options.rate_per_s)
        if self._refilled_ms is not None:
            gained = (now_ms - self._refilled_ms) / 1000 * options.rate_per_s
            self._tokens = min(burst, self._tokens + gained)
        self._refilled_ms = now_ms
        if self._tokens < 1:
            detail = f"more than {options.rate_per_s:g} messages a second; ask again in a moment"
            raise RequestRefused(status=429, reason="too_fast", detail=detail)
        self._tokens -= 1
        return transmit


def read_query(body: Mapping[str, Any]) -> Query:
    """Raises `RequestRefused` (400)."""
    _only(body, ("pgn", "dst", "timeout", "bus"))
    pgn = _number(body, "pgn", PGN_MAX)
    if not pgn:
        raise _bad_body("pgn is needed: the PGN that devices shall send")
    timeout = body.get("timeout")
    try:
        timeout_ms = QUERY_MS if timeout in (None, "") else parse_duration_us(str(timeout)) // 1000
    except InvalidConfig:
        timeout_ms = 0
    if not 1 <= timeout_ms <= QUERY_MS_MAX:
        raise _bad_body("timeout is not a duration such as PT2S, up to PT20S")
    return Query(pgn=pgn, destination=_number(body, "dst", BROADCAST, default=0) or BROADCAST, timeout_ms=timeout_ms)


def _only(body: Mapping[str, Any], known: tuple[str, ...]) -> None:
    if unknown := [name for name in body if name not in known]:
        raise _bad_body(f"{unknown[0][:80]!a} is not known here; keys: {', '.join(known[:-1])}")
    if body.get("bus"):
        raise _bad_body("frames carry no bus here; leave it out")


def _number(body: Mapping[str, Any], name: str, largest: int, *, default: int | None = None) -> int:
    value = body.get(name, default)
    if type(value) is not int or not 0 <= value <= largest:
        raise _bad_body(f"{name} is not a whole number from 0 to {largest}")
    return value


def _bad_body(detail: str) -> RequestRefused:
    return RequestRefused(status=400, reason="bad_body", detail=detail)
