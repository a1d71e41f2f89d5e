"""Events of channels and groups, kept until they are published: Liftbridge's activity stream.

Events are recorded only while there is a channel to publish to, and by every node alike, so a new metadata leader knows
what the previous one had not published: no event is left out, though one may be published twice. The number of waiting
events is bounded; beyond it the oldest are dropped.
"""

from __future__ import annotations

from dataclasses import replace

from tidelog.core.catalog.changes import (
    CreateChannel,
    DeleteChannel,
    ExpelMember,
    ForgetActivity,
    JoinGroup,
    LeaveGroup,
    PauseChannel,
    ResumeChannel,
    SetReadonly,
    SingleChange,
)
from tidelog.core.catalog.group_assignment import ChannelNames
from tidelog.core.catalog.records import ACTIVITY_CHANNEL, EVENTS_MAX, ActivityEvent, Happening
from tidelog.core.catalog.state import State
from tidelog.errors import NothingToChange


def event_of(state: State, change: SingleChange, index: int, position: int) -> ActivityEvent | None:
    """The event that the change is recorded as, judged by the state before it; None if it is not recorded."""
    if ACTIVITY_CHANNEL not in state.channel_ids:
        return None
    match change:
        case JoinGroup():
            return ActivityEvent(
                index=index,
                position=position,
                happening=Happening.JOINED,
                name=change.group,
                member=change.member,
                reads=tuple(sorted({*change.channels, *change.streams})),
            )
        case LeaveGroup() | ExpelMember():
            happening = Happening.LEFT if isinstance(change, LeaveGroup) else Happening.EXPELLED
            return ActivityEvent(
                index=index, position=position, happening=happening, name=change.group, member=change.member
            )
        case CreateChannel():
            return ActivityEvent(
                index=index,
                position=position,
                happening=Happening.CREATED,
                name=change.name,
                labels=change.config.placement_metadata,
            )
        case DeleteChannel() | PauseChannel() | ResumeChannel() | SetReadonly():
            return _channel_event(state, change, index, position)
        case _:
            return None


def _channel_event(
    state: State, change: DeleteChannel | PauseChannel | ResumeChannel | SetReadonly, index: int, position: int
) -> ActivityEvent | None:
    channel = state.channels.get(change.channel_id)
    if channel is None or channel.name == ACTIVITY_CHANNEL:
        return None
    match change:
        case DeleteChannel():
            happening = Happening.DELETED
        case PauseChannel():
            happening = Happening.PAUSED
        case ResumeChannel():
            happening = Happening.RESUMED
        case SetReadonly():
            happening = Happening.READONLY if change.readonly else Happening.WRITABLE
    return ActivityEvent(
        index=index,
        position=position,
        happening=happening,
        name=channel.name,
        labels=channel.config.placement_metadata,
    )


def note(state: State, event: ActivityEvent) -> None:
    if ACTIVITY_CHANNEL not in state.channel_ids:
        return  # it was deleted by this very change
    if event.happening is Happening.CREATED:
        # Partitions are created before what they belong to, so they are all there.
        partitions = ChannelNames(state.channels, state.channel_ids).partitions(event.name)
        event = replace(event, partitions=len(partitions))
    if len(state.activity_events) >= EVENTS_MAX:
        state.put_activity_event(min(state.activity_events), None)
    state.put_activity_event((event.index, event.position), event)


def forget_activity(state: State, change: ForgetActivity, index: int) -> None:
    done = [key for key in state.activity_events if key[0] <= change.upto_index]
    if not done:
        raise NothingToChange(state=f"nothing waits to be published up to index {change.upto_index}")
    for key in sorted(done):
        state.put_activity_event(key, None)


def forget_all(state: State) -> None:
    """The channel is gone: its events are dropped."""
    for key in sorted(state.activity_events):
        state.put_activity_event(key, None)
