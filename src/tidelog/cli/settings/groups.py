"""The settings of `tidelog node` for consumer groups: Liftbridge's, with its defaults. The same on all nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tidelog.config import DURATION, Setting, under

if TYPE_CHECKING:
    from tidelog.core.groups.coordinator import GroupOptions

GROUPS: Final = "Consumer groups"
GROUP_SETTINGS: Final = under(
    GROUPS,
    Setting(
        "groups.consumer-timeout",
        "A member that was not heard for so long is expelled, and its channels go to the others.",
        DURATION,
        15_000,
        at_least=100,
    ),
    Setting(
        "groups.coordinator-timeout",
        "Members that cannot reach their coordinator for so long report it; more than half replace it.",
        DURATION,
        15_000,
        at_least=100,
    ),
)


def group_options(values: dict[str, Any]) -> GroupOptions:
    from tidelog.core.groups.coordinator import GroupOptions

    return GroupOptions(
        consumer_timeout_ms=values["groups-consumer-timeout"],
        coordinator_timeout_ms=values["groups-coordinator-timeout"],
    )
