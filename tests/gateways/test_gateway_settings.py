"""The gateway's settings, and what is said about them before anything is opened."""

from __future__ import annotations

from pathlib import Path

from tidelog.cli.settings.gateway import liftbridge_options, with_gateway
from tidelog.cli.settings.node import NODE_SETTINGS, check_node, node_options
from tidelog.config import Loaded, load_settings

GOOD = ("-id", "n1", "-peers", "n1=127.0.0.1:9500", "-insecure-dev")


def loaded(folder: Path, *arguments: str) -> Loaded:
    given = [*GOOD, "-data-dir", str(folder / "n1"), *arguments]
    found = load_settings(NODE_SETTINGS, arguments=given, environment={})
    check_node(found)
    return found


def test_the_gateway_is_off_by_default(tmp_path: Path) -> None:
    found = loaded(tmp_path)
    assert found.problems == []
    assert liftbridge_options(found.values) is None
    options = node_options(found.values)
    assert with_gateway(found.values, options, print) == (options, None)


def test_a_gateway_tells_the_catalog_where_it_is(tmp_path: Path) -> None:
    found = loaded(tmp_path, "-liftbridge-listen", "127.0.0.1:9292", "-liftbridge-advertise", "boats.example:19292")
    assert found.problems == []
    options = liftbridge_options(found.values)
    assert options is not None
    assert (options.listen, options.advertise, options.insecure_dev) == ("127.0.0.1:9292", "boats.example:19292", True)


def test_a_gateway_with_certificates_needs_one_of_its_own(tmp_path: Path) -> None:
    found = load_settings(
        NODE_SETTINGS,
        arguments=["-id", "n1", "-peers", "n1=h:1", "-data-dir", str(tmp_path), "-liftbridge-listen", ":9292"],
        environment={},
    )
    check_node(found)
    (problem,) = [problem for problem in found.problems if "liftbridge" in problem]
    assert "-liftbridge-link-cert and -liftbridge-link-key are missing" in problem
    assert "tidelog ca issue" in problem


def test_two_gateways_do_not_share_a_port(tmp_path: Path) -> None:
    found = loaded(tmp_path, "-liftbridge-listen", ":9500")
    assert any("-liftbridge-listen and -listen are the same port" in problem for problem in found.problems)


def test_an_anonymous_client_has_a_name(tmp_path: Path) -> None:
    found = loaded(tmp_path, "-liftbridge-listen", ":9292", "-liftbridge-anonymous", "no name")
    assert any("no name of a client" in problem for problem in found.problems)
