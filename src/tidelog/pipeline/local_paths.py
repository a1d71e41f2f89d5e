"""Folders and files of the pipeline lie on a file system that is mounted here. Their paths are absolute before Spark
starts, since a worker runs in another folder than the driver.

A URI of any other scheme than `file` is refused: taken for a path, `s3://lake` would name a local folder `s3:`.

PLP1  A path that a task gets is absolute.
PLP2  Nothing is read from or written to a path that somebody meant as the address of an object store.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from tidelog.errors import InvalidConfig

# A `Path` has made one slash of two, so one is enough.
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")


def local_path(given: str | Path, *, name: str, section: str = "pipeline") -> str:
    """The absolute path (PLP1); empty for empty. `name` is the setting or option that gave it."""
    text = str(given)
    scheme = _SCHEME.match(text)
    if scheme is None:
        return str(Path(text).absolute()) if text else ""
    if scheme[1].lower() != "file":
        problem = (
            f"{name} is {text!r}, and {scheme[1]} is no file system that is mounted here; object stores do not work "
            "yet: name a folder, or mount the store and name the folder where it is"
        )
        raise InvalidConfig(section=section, problems=[problem])
    parts = urlsplit(text)
    if parts.netloc not in ("", "localhost"):
        problem = f"{name} is {text!r}, a file of host {parts.netloc!r}; write file:///folder, or only the path"
        raise InvalidConfig(section=section, problems=[problem])
    return unquote(parts.path)
