"""The settings of `tidelog node` for consumer groups: Liftbridge's, with its defaults. The same on all nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tidelog.config import DURATION, Setting

if TYPE_CHECKING:
    from tidelog.core.groups.coordinator import GroupOptions

GROUPS: Final = "Consumer groups"
GROUP_SETTINGS: Final = (
    Setting(
        flag="groups-consumer-timeout",
        key="groups.consumer-timeout",
        kind=DURATION,
        default=15_000,
        at_least=100,
        group=GROUPS,
        help="A member that was not heard for so long is expelled, and its channels go to the others.",
    ),
    Setting(
        flag="groups-coordinator-timeout",
        key="groups.coordinator-timeout",
        kind=DURATION,
        default=15_000,
        at_least=100,
        group=GROUPS,
        help="Members that cannot reach their coordinator for so long report it; more than half replace it.",
    ),
)


def group_options(values: dict[str, Any]) -> GroupOptions:
    from tidelog.core.groups.coordinator import GroupOptions

    return GroupOptions(
        consumer_timeout_ms=values["groups-consumer-timeout"],
        coordinator_timeout_ms=values["groups-coordinator-timeout"],
    )
