"""The OpenAPI documents in docs/openapi, written from the routes themselves.

Refresh them after changing a route: `python -m tidelog.cli.openapi_page boat > docs/openapi/boat.json`, and the same
with `cloud` and `node`.
"""

from __future__ import annotations

import json
import sys
from typing import Final

from tidelog.cluster.http import cloud_http, node_http
from tidelog.edge import boat_http
from tidelog.edge.boat_http import BoatView
from tidelog.http.openapi import with_document

SIDES: Final = ("boat", "cloud", "node")


def render_openapi_page(side: str) -> str:
    """The document of one of `SIDES`."""
    if side == "boat":
        _, document = with_document(boat_http.boat_routes(_no_boat), title=boat_http.TITLE)
    elif side == "cloud":
        _, document = with_document(cloud_http.cloud_routes(lambda: None), title=cloud_http.TITLE)
    else:
        _, document = with_document(node_http.node_routes(_no_node), title=node_http.TITLE)
    return json.dumps(document, indent=2) + "\n"


def _no_boat() -> BoatView:
    raise AssertionError("a document is made from the table alone")


def _no_node() -> node_http.NodeView:
    raise AssertionError("a document is made from the table alone")


if __name__ == "__main__":
    if sys.argv[1:] not in ([side] for side in SIDES):
        sys.exit(f"say one of {', '.join(SIDES)}")
    sys.stdout.write(render_openapi_page(sys.argv[1]))
