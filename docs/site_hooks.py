"""What `make docs` needs beyond mkdocs: the pages at the root of the repository become pages of the site.

Links between them and the pages in docs/ are written for a reader of the repository; here they are turned to the site.
A link to a file that is no page (a module, a .proto) becomes its path as plain text.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
ROOT_PAGES = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
}
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)#:\s]+)(#[^)\s]*)?\)")
IMAGE = re.compile(r"!\[([^\]]*)\]\(docs/([^)\s]+)\)")


def on_files(files: Files, *, config: Any) -> Files:
    for source, page in ROOT_PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:
    place = PurePosixPath(page.file.src_uri)
    origin = {site: source for source, site in ROOT_PAGES.items()}.get(str(place))
    folder = PurePosixPath() if origin else PurePosixPath("docs") / place.parent
    depth = len(place.parent.parts)

    def turned(match: re.Match[str]) -> str:
        text, target, anchor = match[1], match[2], match[3] or ""
        file = _normal(folder / target)
        to = ROOT_PAGES.get(file)
        if to is None and file.startswith("docs/"):
            to = file.removeprefix("docs/")
            if (ROOT / file).is_dir():
                inside = ROOT / file / "README.md"
                return f"[{text}]({'../' * depth}{to}/README.md)" if inside.exists() else text
        if to is None or to.startswith("openapi/"):
            return f"{text} (`{file}`)"
        return f"[{text}]({'../' * depth}{to}{anchor})"

    return IMAGE.sub(r"![\1](\2)", LINK.sub(turned, markdown))


def _normal(path: PurePosixPath) -> str:
    parts: list[str] = []
    for part in path.parts:
        if part == "..":
            parts.pop()
        elif part != ".":
            parts.append(part)
    return "/".join(parts)
