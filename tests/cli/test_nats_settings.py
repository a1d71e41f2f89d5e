"""The settings of `tidelog node` for NATS: what they become, and every way to get them wrong, in words."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.test_node_settings import good, loaded, problems
from tidelog.cli.settings.node import node_options
from tidelog.codecs.nats_subjects import DEFAULT_NAMESPACE
from tidelog.transports.nats.connection import NatsOptions

SERVERS = ("-nats-servers", "nats://h1:4222,tls://h2:4222")


def test_without_settings_replication_takes_the_links_and_no_server_is_used() -> None:
    options = node_options(good().values)
    assert (options.transport, options.nats, options.nats_namespace) == ("link", None, DEFAULT_NAMESPACE)


def test_servers_alone_leave_replication_on_the_links() -> None:
    options = node_options(good(*SERVERS).values)
    assert options.transport == "link"
    assert options.nats == NatsOptions(servers=("nats://h1:4222", "tls://h2:4222"), name="tidelog-n1")


def test_everything_can_be_said_in_a_file(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("secret")
    file = tmp_path / "node.conf"
    file.write_text(
        "node.id = n1, data-dir = data, insecure-dev = true\n"
        'cluster { transport = nats, peers = "n1=h1:9500" }\n'
        f'nats {{ servers = "nats://h1:4222", namespace = north, user = tidelog, password-file = "{password}" }}\n'
    )
    found = loaded(file=file)
    found.raise_problems()
    options = node_options(found.values)
    assert (options.transport, options.nats_namespace) == ("nats", "north")
    assert options.nats is not None
    assert (options.nats.user, options.nats.password_file) == ("tidelog", password)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("-transport", "nats"), "needs -nats-servers"),
        (("-transport", "pigeon"), "one of link, nats"),
        (("-nats-user", "u"), "-nats-user needs -nats-servers"),
        ((*SERVERS, "-nats-namespace", "a.b"), "is no namespace"),
        ((*SERVERS, "-nats-user", "u"), "user and password file go together"),
        ((*SERVERS, "-nats-password-file", "/nowhere"), "cannot be read"),
        ((*SERVERS, "-nats-credentials", "/nowhere"), "cannot be read"),
        ((*SERVERS, "-nats-tls-ca", "/nowhere"), "cannot be read"),
        (("-nats-servers", "h1:4222"), "is no address of a NATS server"),
        (("-nats-servers", "nats://u:p@h1:4222"), "password in a server's address"),
    ],
)
def test_what_is_wrong_is_said(arguments: tuple[str, ...], words: str) -> None:
    assert any(words in problem for problem in problems(*arguments)), problems(*arguments)


def test_a_user_and_credentials_exclude_each_other(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    arguments = ("-nats-user", "u", "-nats-password-file", str(file), "-nats-credentials", str(file))
    (problem,) = problems(*SERVERS, *arguments)
    assert "a user and a credentials file" in problem
