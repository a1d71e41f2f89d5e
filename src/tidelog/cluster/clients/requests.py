"""JSON requests of clients, parsed strictly into records: docs/protocols/client.md has the table.

A field that is missing, unknown or of another type is `BadMessage` with its name. Values are checked where
the request is carried out.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NoReturn

from tidelog.codecs.client_codec import CREATE_MAX, DESCRIBE_MAX, NUMBER_MAX
from tidelog.core.catalog.records import GROUP_PATTERNS_MAX, PRINCIPAL, SIMPLE_NAME, group_cursor
from tidelog.errors import BadMessage
from tidelog.pki.identity import is_name

NAMES_MAX: Final = DESCRIBE_MAX
REPLICAS_MAX: Final = 64
_MISSING: Final = object()


class AlterOperation(Enum):
    ALTER = "alter"
    PAUSE = "pause"
    RESUME = "resume"
    READONLY = "readonly"
    WRITABLE = "writable"
    DELETE = "delete"
    ELECT = "elect"


class CursorOperation(Enum):
    SET = "set"
    GET = "get"
    LIST = "list"
    DELETE = "delete"


class GroupOperation(Enum):
    JOIN = "join"
    LEAVE = "leave"
    REPORT = "report"
    DELETE = "delete"


class GroupQuestion(Enum):
    ASSIGNMENTS = "assignments"
    DESCRIBE = "describe"
    LIST = "list"


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeRequest:
    names: tuple[str, ...] | None
    """None: all channels that the caller may see."""
    barrier: bool
    """Whether everything committed before the request must be seen."""
    after: str
    limit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedChannel:
    name: str
    config: Any
    """JSON: only settings that differ from the defaults."""
    needs_factor: bool = False
    """Refuse while fewer nodes than its factor can take it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterRequest:
    channel: str
    operation: AlterOperation
    config: Any
    """JSON: only settings that change; None for nothing."""
    replicas: tuple[str, ...] | None
    leader: str | None
    unclean: bool
    operator: str
    expected_channel_epoch: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenProducerRequest:
    channel: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseProducerRequest:
    """One of them identifies it: the name, or the id and epoch that its opener got."""

    channel: str
    name: str
    producer_id: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducersRequest:
    channel_id: int
    after: int
    limit: int


@dataclass(frozen=True, slots=True)
class Earliest:
    """The oldest record that is left."""


@dataclass(frozen=True, slots=True)
class Latest:
    """The committed end."""


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first record from this time on."""

    time_us: int


@dataclass(frozen=True, slots=True)
class AtSeq:
    """The first record from this seq on, of a boat's lineage if one is named."""

    seq: int
    lineage: bytes | None


Place = Earliest | Latest | AtTime | AtSeq


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetsRequest:
    channel_id: int
    at: Place


@dataclass(frozen=True, slots=True, kw_only=True)
class CursorRequest:
    channel_id: int
    operation: CursorOperation
    name: str
    offset: int
    claim: GroupClaim | None
    """The group and member: only a member with the channel assigned may read and move its group's cursor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupClaim:
    """The identity that a caller claims in a group."""

    group: str
    member: str
    life: int
    epoch: int
    """The newest epoch of the group that it has seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRequest:
    """A request that changes a group, or reports that its coordinator cannot be reached."""

    operation: GroupOperation
    group: str
    member: str
    channels: tuple[str, ...]
    streams: tuple[str, ...]
    again: bool
    life: int | None
    coordinator: str
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupAskRequest:
    question: GroupQuestion
    group: str
    claim: GroupClaim | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RebalanceRequest:
    dry_run: bool
    channels: tuple[str, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PassedOn:
    """A request that another node relays to the metadata leader."""

    principal: str
    request: dict[str, Any]


def read_describe(plain: dict[str, Any]) -> DescribeRequest:
    fields = _Fields(plain, "a describe request")
    names = fields.texts("channels", NAMES_MAX, optional=True)
    request = DescribeRequest(
        names=names,
        barrier=fields.flag("barrier"),
        after=fields.text("after", ""),
        limit=fields.number("limit", DESCRIBE_MAX),
    )
    fields.end()
    if not 1 <= request.limit <= DESCRIBE_MAX:
        fields.refuse("limit")
    return request


def read_create(plain: dict[str, Any]) -> list[WantedChannel]:
    fields = _Fields(plain, "a create request")
    channels = fields.take("channels")
    fields.end()
    if type(channels) is not list or not 1 <= len(channels) <= CREATE_MAX:
        raise BadMessage(problem=f"a create request names 1 to {CREATE_MAX} channels")
    found = []
    for channel in channels:
        each = _Fields(channel, "a channel to create")
        found.append(
            WantedChannel(
                name=each.text("name"), config=each.take("config", {}), needs_factor=each.flag("needs_factor")
            )
        )
        each.end()
    return found


def read_alter(plain: dict[str, Any]) -> AlterRequest:
    fields = _Fields(plain, "an alter request")
    expected = fields.take("expected_channel_epoch", None)
    if expected is not None:
        expected = fields.number("expected_channel_epoch")
    leader = fields.take("leader", None)
    if leader is not None and (type(leader) is not str or not is_name(leader)):
        fields.refuse("leader")
    request = AlterRequest(
        channel=fields.text("channel"),
        operation=fields.choice("op", AlterOperation),
        config=fields.take("config", None),
        replicas=fields.texts("replicas", REPLICAS_MAX, optional=True),
        leader=leader,
        unclean=fields.flag("unclean"),
        operator=fields.text("operator", ""),
        expected_channel_epoch=expected,
    )
    fields.end()
    if request.replicas is not None and not all(map(is_name, request.replicas)):
        fields.refuse("replicas")
    return request


def read_open_producer(plain: dict[str, Any]) -> OpenProducerRequest:
    fields = _Fields(plain, "a request to open a producer")
    request = OpenProducerRequest(channel=fields.text("channel"), name=fields.text("name"))
    fields.end()
    return request


def read_close_producer(plain: dict[str, Any]) -> CloseProducerRequest:
    fields = _Fields(plain, "a request to close a producer")
    request = CloseProducerRequest(
        channel=fields.text("channel"),
        name=fields.text("name"),
        producer_id=fields.number("producer_id"),
        epoch=fields.number("epoch"),
    )
    fields.end()
    return request


def read_producers(plain: dict[str, Any]) -> ProducersRequest:
    fields = _Fields(plain, "a request for producers")
    request = ProducersRequest(
        channel_id=fields.number("channel_id"), after=fields.number("after"), limit=fields.number("limit")
    )
    fields.end()
    return request


def read_offsets(plain: dict[str, Any]) -> OffsetsRequest:
    fields = _Fields(plain, "a request for offsets")
    channel_id, at = fields.number("channel_id"), fields.take("at")
    fields.end()
    place: Place
    match at:
        case "earliest":
            place = Earliest()
        case "latest":
            place = Latest()
        case {"time_us": int(time_us), **rest} if type(time_us) is int and abs(time_us) < NUMBER_MAX and not rest:
            place = AtTime(time_us)
        case {"seq": int(seq), **rest} if type(seq) is int and 0 <= seq < NUMBER_MAX and not rest.keys() - {"lineage"}:
            place = AtSeq(seq, _lineage(rest.get("lineage")))
        case _:
            raise BadMessage(problem='"at" is "earliest", "latest", {"time_us": ...} or {"seq": ..., "lineage": ...}')
    return OffsetsRequest(channel_id=channel_id, at=place)


def _lineage(text: Any) -> bytes | None:
    if text is None:
        return None
    try:
        lineage = bytes.fromhex(text)
    except (ValueError, TypeError):
        lineage = b""
    if len(lineage) != 16:
        raise BadMessage(problem="a lineage is 32 hex digits")
    return lineage


def read_cursor(plain: dict[str, Any]) -> CursorRequest:
    fields = _Fields(plain, "a request about a cursor")
    operation = fields.choice("op", CursorOperation)
    listing, setting = operation is CursorOperation.LIST, operation is CursorOperation.SET
    request = CursorRequest(
        channel_id=fields.number("channel_id"),
        operation=operation,
        name=fields.text("name", "" if listing else _MISSING),
        offset=fields.number("offset", _MISSING if setting else 0),
        claim=_claim(fields.take("as", None)),
    )
    fields.end()
    if request.claim is not None and (listing or request.name != group_cursor(request.claim.group)):
        raise BadMessage(problem=f"as a member of a group one asks for its cursor, {group_cursor('<group>')!r}")
    if not listing and not SIMPLE_NAME.fullmatch(request.name):
        raise BadMessage(problem=f"{request.name[:80]!a} is not a name of a cursor: letters, digits, dots and dashes")
    return request


def _claim(plain: Any) -> GroupClaim | None:
    if plain is None:
        return None
    fields = _Fields(plain, "a claim to be a member of a group")
    claim = GroupClaim(
        group=fields.text("group"),
        member=fields.text("member"),
        life=fields.number("life"),
        epoch=fields.number("epoch"),
    )
    fields.end()
    return claim


def read_group(plain: dict[str, Any]) -> GroupRequest:
    fields = _Fields(plain, "a request about a group")
    operation = fields.choice("op", GroupOperation)
    joining, leaving = operation is GroupOperation.JOIN, operation is GroupOperation.LEAVE
    life = fields.take("life", None) if leaving else None
    if life is not None:
        life = fields.number("life")
    reporting = operation is GroupOperation.REPORT
    request = GroupRequest(
        operation=operation,
        group=fields.text("group"),
        member="" if operation is GroupOperation.DELETE else fields.text("member"),
        channels=fields.texts("channels", GROUP_PATTERNS_MAX, optional=True) or () if joining else (),
        streams=fields.texts("streams", GROUP_PATTERNS_MAX, optional=True) or () if joining else (),
        again=fields.flag("again") if joining else False,
        life=life,
        coordinator=fields.text("coordinator") if reporting else "",
        epoch=fields.number("epoch") if reporting else 0,
    )
    fields.end()
    return request


def read_group_ask(plain: dict[str, Any]) -> GroupAskRequest:
    fields = _Fields(plain, "a question about groups")
    question = fields.choice("op", GroupQuestion)
    claim = None
    if question is GroupQuestion.ASSIGNMENTS:
        claim = _claim(fields.take("as"))
        if claim is None:
            fields.refuse("as")
    group = fields.text("group") if question is GroupQuestion.DESCRIBE else ""
    fields.end()
    return GroupAskRequest(question=question, group=claim.group if claim is not None else group, claim=claim)


def read_rebalance(plain: dict[str, Any]) -> RebalanceRequest:
    fields = _Fields(plain, "a rebalance request")
    request = RebalanceRequest(
        dry_run=fields.flag("dry_run"), channels=fields.texts("channels", NAMES_MAX, optional=True)
    )
    fields.end()
    return request


def pass_on(principal: str, request: dict[str, Any]) -> dict[str, Any]:
    return {"for": principal, "ask": request}


def read_passed_on(plain: dict[str, Any]) -> PassedOn:
    fields = _Fields(plain, "a request that is passed on")
    principal, request = fields.text("for"), fields.take("ask")
    fields.end()
    if not PRINCIPAL.fullmatch(principal) or type(request) is not dict:
        fields.refuse("for")
    return PassedOn(principal=principal, request=request)


class _Fields:
    """Takes the fields of a JSON object one by one; `end` refuses what is left."""

    def __init__(self, plain: Any, what: str) -> None:
        self._what = what
        if type(plain) is not dict:
            raise BadMessage(problem=f"{what} is not a JSON object")
        self._plain: dict[str, Any] = plain
        self._known: set[str] = set()

    def refuse(self, name: str) -> NoReturn:
        raise BadMessage(problem=f"{self._what} has no {name!r} that can be used; see docs/protocols/client.md")

    def take(self, name: str, default: Any = _MISSING) -> Any:
        self._known.add(name)
        value = self._plain.get(name, default)
        if value is _MISSING:
            self.refuse(name)
        return value

    def text(self, name: str, default: Any = _MISSING) -> str:
        value = self.take(name, default)
        if type(value) is not str:
            self.refuse(name)
        return value

    def number(self, name: str, default: Any = _MISSING) -> int:
        value = self.take(name, default)
        if type(value) is not int or not 0 <= value < NUMBER_MAX:
            self.refuse(name)
        return value

    def flag(self, name: str) -> bool:
        """False if it is missing."""
        value = self.take(name, False)
        if type(value) is not bool:
            self.refuse(name)
        return value

    def texts(self, name: str, count_max: int, *, optional: bool) -> tuple[str, ...] | None:
        value = self.take(name, None if optional else _MISSING)
        if value is None and optional:
            return None
        if type(value) is not list or len(value) > count_max or not all(type(text) is str for text in value):
            self.refuse(name)
        return tuple(value)

    def choice(self, name: str, choices: type[Any]) -> Any:
        value = self.take(name)
        try:
            return choices(value)
        except ValueError:
            self.refuse(name)

    def end(self) -> None:
        if unknown := sorted(self._plain.keys() - self._known):
            raise BadMessage(problem=f"{self._what} has a field {unknown[0][:40]!a} that is not known here")
