"""Administration of channels: create, describe, change, delete. Any node takes the request and relays it where needed.

AN1  After an unknown outcome only requests that may be done twice are repeated: creating with the same config, setting
     a value, deleting. Elections and rebalancing are sent once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidelog.client.calls import Calls
from tidelog.client.options import Start
from tidelog.client.reading.fetching import offset_at
from tidelog.client.routes import ChannelRoute
from tidelog.codecs.client_codec import (
    ALTER,
    CLOSE_PRODUCER,
    CREATE,
    CREATE_MAX,
    CURSOR,
    DESCRIBE,
    DESCRIBE_MAX,
    GROUP,
    GROUP_ASK,
    PRODUCERS,
    REBALANCE,
    config_json,
    config_of_json,
)
from tidelog.codecs.error_codec import error_of_json
from tidelog.core.catalog.channel_config import ChannelConfig
from tidelog.errors import BadMessage, LogError, UnknownChannel, UnknownGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class Created:
    """A channel that exists now."""

    name: str
    channel_id: int
    existed: bool
    """It existed already, with the same config."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offsets:
    """The ends and offsets of a channel's log."""

    log_start: int
    committed_end: int
    leader_epoch: int


class ChannelAdmin:
    """The methods of `Client` for channels. Configs are `ChannelConfig`, or settings by their names."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def create_channel(
        self, name: str, config: ChannelConfig | None = None, *, timeout_ms: int | None = None, **settings: Any
    ) -> Created:
        """Create a channel; fine if it exists with the same config, `ConfigMismatch` if with another."""
        (created,) = await self.create_channels([name], config, timeout_ms=timeout_ms, **settings)
        if isinstance(created, LogError):
            raise created
        return created

    async def create_channels(
        self,
        names: Sequence[str],
        config: ChannelConfig | None = None,
        *,
        timeout_ms: int | None = None,
        **settings: Any,
    ) -> list[Created | LogError]:
        """Create many channels with the same config; the outcome of each, in order."""
        wanted = config_of_json(settings, config)
        wanted.validate()
        plain = config_json(wanted)
        outcomes: list[Created | LogError] = []
        for start in range(0, len(names), CREATE_MAX):
            part = names[start : start + CREATE_MAX]
            answer = await self._calls.ask(
                CREATE,
                {"channels": [{"name": name, "config": plain} for name in part]},
                what=f"{len(part)} channels to be created",
                timeout_ms=timeout_ms,
                attempt_ms=self._calls.options.timeout_ms,
            )
            results = answer.get("results")
            if not isinstance(results, list) or len(results) != len(part):
                raise BadMessage(problem="an answer to the creation of channels lacks some")
            outcomes += [_created(name, result) for name, result in zip(part, results, strict=True)]
        return outcomes

    async def describe(self, name: str, *, timeout_ms: int | None = None) -> dict[str, Any]:
        """Everything the catalog knows of one channel; `UnknownChannel` if there is none."""
        answer = await self._describe({"channels": [name], "barrier": True}, timeout_ms)
        channels: list[dict[str, Any]] = answer["channels"]
        if not channels:
            raise UnknownChannel(channel=name)
        return channels[0]

    async def describe_some(self, names: Sequence[str], *, timeout_ms: int | None = None) -> list[dict[str, Any]]:
        """Those of these channels that exist, in the given order."""
        found: list[dict[str, Any]] = []
        for start in range(0, len(names), DESCRIBE_MAX):
            part = list(names[start : start + DESCRIBE_MAX])
            found += (await self._describe({"channels": part, "barrier": not start}, timeout_ms))["channels"]
        return found

    async def channels(self, *, timeout_ms: int | None = None) -> list[dict[str, Any]]:
        """All channels, by name."""
        found: list[dict[str, Any]] = []
        after = ""
        while True:
            request = {"channels": None, "barrier": not after, "after": after, "limit": DESCRIBE_MAX}
            answer = await self._describe(request, timeout_ms)
            found += answer["channels"]
            after = answer.get("next") or ""
            if not after:
                return found

    async def cluster(self, *, timeout_ms: int | None = None) -> dict[str, Any]:
        """The nodes, and which of them leads the metadata."""
        answer = await self._describe({"channels": [], "barrier": False}, timeout_ms)
        return {name: answer.get(name) for name in ("cluster", "node", "metadata_leader", "nodes")}

    async def _describe(self, request: dict[str, Any], timeout_ms: int | None) -> dict[str, Any]:
        answer = await self._calls.ask(DESCRIBE, request, what="a description of channels", timeout_ms=timeout_ms)
        self._calls.routes.described(answer)
        return answer

    async def alter(
        self,
        name: str,
        *,
        replicas: Sequence[str] | None = None,
        expected_channel_epoch: int | None = None,
        timeout_ms: int | None = None,
        **settings: Any,
    ) -> dict[str, Any]:
        """Change settings by their names, or the replicas. With an expected epoch only if the channel has not changed
        since."""
        return await self._alter(
            name,
            "alter",
            {
                "config": settings,
                "replicas": None if replicas is None else list(replicas),
                "expected_channel_epoch": expected_channel_epoch,
            },
            timeout_ms,
            is_repeatable=expected_channel_epoch is None,
        )

    async def pause(self, name: str, *, timeout_ms: int | None = None) -> dict[str, Any]:
        """Pause the channel: it takes no records and is not replicated until it is resumed."""
        return await self._alter(name, "pause", {}, timeout_ms)

    async def resume(self, name: str, *, timeout_ms: int | None = None) -> dict[str, Any]:
        return await self._alter(name, "resume", {}, timeout_ms)

    async def set_readonly(self, name: str, readonly: bool = True, *, timeout_ms: int | None = None) -> dict[str, Any]:
        return await self._alter(name, "readonly" if readonly else "writable", {}, timeout_ms)

    async def delete(self, name: str, *, timeout_ms: int | None = None) -> None:
        """Delete a channel with all its records, for good."""
        await self._alter(name, "delete", {}, timeout_ms)
        self._calls.routes.forget(name)

    async def elect(
        self,
        name: str,
        leader: str | None = None,
        *,
        unclean: bool = False,
        operator: str = "",
        timeout_ms: int | None = None,
    ) -> dict[str, Any]:
        """Elect a leader, `leader` if it is in sync. Unclean: even if it is not; committed records may be lost."""
        more = {"leader": leader, "unclean": unclean, "operator": operator}
        return await self._alter(name, "elect", more, timeout_ms, is_repeatable=False)

    async def _alter(
        self,
        name: str,
        op: str,
        more: Mapping[str, Any],
        timeout_ms: int | None,
        *,
        is_repeatable: bool = True,
    ) -> dict[str, Any]:
        answer = await self._calls.ask(
            ALTER,
            {"channel": name, "op": op, **more},
            what=f"channel {name!r}: {op}",
            timeout_ms=timeout_ms,
            is_repeatable=is_repeatable,
            attempt_ms=self._calls.options.commit_ms,
            settled=lambda error: op == "delete" and isinstance(error, UnknownChannel),
        )
        channel: dict[str, Any] = answer.get("channel") or {}
        return channel

    async def rebalance(
        self,
        *,
        dry_run: bool = True,
        channels: Sequence[str] | None = None,
        timeout_ms: int | None = None,
    ) -> dict[str, Any]:
        """Even out replicas and leaders: returns the moves, and whether they were made."""
        return await self._calls.ask(
            REBALANCE,
            {"dry_run": dry_run, "channels": None if channels is None else list(channels)},
            what="a plan to rebalance",
            timeout_ms=timeout_ms,
            is_repeatable=dry_run,
            attempt_ms=self._calls.options.timeout_ms,
        )

    # --- one channel's log -------------------------------------------------------------------------

    async def offsets(self, name: str, *, timeout_ms: int | None = None, channel_id: int | None = None) -> Offsets:
        """The start and end of the channel by its leader's answer; with `channel_id` of that channel, and no other of
        its name."""
        found = await offset_at(self._calls, name, "latest", timeout_ms=timeout_ms, channel_id=channel_id)
        return Offsets(
            log_start=found["log_start"], committed_end=found["committed_end"], leader_epoch=found["leader_epoch"]
        )

    async def offset_at(
        self, name: str, start: Start, *, timeout_ms: int | None = None, channel_id: int | None = None
    ) -> int:
        """The offset at which a reader with this start would begin; `channel_id` as with `offsets`."""
        if isinstance(start, int) and not isinstance(start, bool):
            return start
        return (await offset_at(self._calls, name, start, timeout_ms=timeout_ms, channel_id=channel_id))["offset"]

    async def cursors(self, name: str, *, timeout_ms: int | None = None) -> dict[str, int]:
        """The named cursors of a channel and their offsets."""
        answer = await self._cursor(name, "list", {}, timeout_ms)
        cursors = answer.get("cursors")
        if isinstance(cursors, Mapping):
            return {str(cursor): int(offset) for cursor, offset in cursors.items()}
        if isinstance(cursors, list):
            return {str(cursor["name"]): int(cursor["offset"]) for cursor in cursors}
        raise BadMessage(problem="an answer about cursors lacks them")

    async def set_cursor(self, name: str, cursor: str, offset: int, *, timeout_ms: int | None = None) -> None:
        await self._cursor(name, "set", {"name": cursor, "offset": offset}, timeout_ms)

    async def delete_cursor(self, name: str, cursor: str, *, timeout_ms: int | None = None) -> None:
        await self._cursor(name, "delete", {"name": cursor}, timeout_ms)

    # --- producers -----------------------------------------------------------------------------------

    async def producers(self, name: str, *, timeout_ms: int | None = None) -> list[dict[str, Any]]:
        """The open producers of a channel by id: name, owner, epoch, when each was opened and last wrote."""
        found: list[dict[str, Any]] = []
        after: int | None = 0

        def page_after(route: ChannelRoute) -> dict[str, Any]:
            return {"channel_id": route.channel_id, "after": after, "limit": DESCRIBE_MAX}

        while after is not None:
            answer = await self._calls.ask_leader(
                name,
                PRODUCERS,
                page_after,
                what=f"producers of {name!r}",
                timeout_ms=timeout_ms,
            )
            page = answer.get("producers")
            if not isinstance(page, list):
                raise BadMessage(problem="an answer about producers lacks them")
            found += page
            after = answer.get("next")
        return found

    async def remove_producer(self, name: str, producer: str, *, timeout_ms: int | None = None) -> bool:
        """Close a producer of channel `name` by its name; False if there is none. A producer that still writes opens
        itself anew, and the outcome of blocks it was sending is then unknown (`OutcomeUnknown`)."""
        answer = await self._calls.ask(
            CLOSE_PRODUCER,
            {"channel": name, "name": producer, "producer_id": 0, "epoch": 0},
            what=f"producer {producer!r} of {name!r} to be removed",
            timeout_ms=timeout_ms,
            attempt_ms=self._calls.options.commit_ms,
        )
        return bool(answer.get("closed"))

    # --- groups --------------------------------------------------------------------------------------

    async def groups(self, *, timeout_ms: int | None = None) -> list[dict[str, Any]]:
        """Consumer groups that the caller may know of, by name; at most 1,000."""
        answer = await self._calls.ask(GROUP_ASK, {"op": "list"}, what="the groups", timeout_ms=timeout_ms)
        groups: list[dict[str, Any]] = answer.get("groups") or []
        return groups

    async def describe_group(self, group: str, *, timeout_ms: int | None = None) -> dict[str, Any]:
        """Members, their channels, and the coordinator; `UnknownGroup` if the group has no members."""
        request = {"op": "describe", "group": group}
        answer = await self._calls.ask(GROUP_ASK, request, what=f"group {group!r}", timeout_ms=timeout_ms)
        found: dict[str, Any] = answer.get("group") or {}
        return found

    async def delete_group(self, group: str, *, timeout_ms: int | None = None) -> None:
        """Expel all members at once. Running members join again by themselves; positions stay."""
        await self._calls.ask(
            GROUP,
            {"op": "delete", "group": group},
            what=f"group {group!r} to be deleted",
            timeout_ms=timeout_ms,
            attempt_ms=self._calls.options.commit_ms,
            settled=lambda error: isinstance(error, UnknownGroup),
        )

    async def _cursor(self, name: str, op: str, more: Mapping[str, Any], timeout_ms: int | None) -> dict[str, Any]:
        return await self._calls.ask_leader(
            name,
            CURSOR,
            lambda route: {"channel_id": route.channel_id, "op": op, **more},
            what=f"cursors of {name!r}",
            timeout_ms=timeout_ms,
        )


def _created(name: str, result: Any) -> Created | LogError:
    match result:
        case {"channel_id": int(channel_id), **rest}:
            return Created(name=name, channel_id=channel_id, existed=bool(rest.get("existed")))
        case {"error": plain}:
            return error_of_json(plain)
        case _:
            raise BadMessage(problem=f"the outcome of creating {name!r} cannot be read")
