"""What the site adds to the Markdown files: the README as its first page, the API and the options from the code.

Links that leave docs/ are to files of the repository: figures and pages are taken along, the rest is shown there.
"""

from __future__ import annotations

import posixpath
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import pocketbayes as pb
from pocketbayes.cli import app

ROOT = Path(__file__).parents[2]
GROUPS = {
    "posterior": "Posteriors",
    "structure": "Structure",
    "training": "Training",
    "sharing": "Sharing",
    "prediction": "Predictions",
    "compression": "Compression",
    "artifact": "Files",
    "runtime": "Files without torch",
    "noise": "Noise",
}
TAKEN_ALONG = {"README.md": "index.md", "RESULTS.md": "results/index.md", "CHANGELOG.md": "changelog.md"}
LINK = re.compile(r"(!?\[[^\]]*\]\()([^)#\s]+)(#[^)\s]*)?(\))")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The navigation of generated pages."""
    assert config.nav is not None
    api = [
        {GROUPS[group]: [{name: f"api/{name}.md"} for name in names]} for group, names in _groups().items()
    ]
    modules = {"Modules": [{name: f"api/modules/{name}.md"} for name in pb._MODULES]}
    config.nav += [
        {"Options": "options.md"},
        {"API": ["api/index.md", *api, modules]},
        {"Changes": "changelog.md"},
    ]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Generated pages, and what other pages show of the repository."""
    pages = {page: (ROOT / source).read_text() for source, page in TAKEN_ALONG.items()}
    pages |= {f"api/{name}.md": f"::: pocketbayes.{home}.{name}\n" for name, home in pb._HOME.items()}
    pages |= {f"api/modules/{name}.md": f"::: pocketbayes.{name}\n" for name in pb._MODULES}
    pages |= {"options.md": _options(), "api/index.md": _contents()}
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    for figure in (ROOT / "experiments" / "results").rglob("*.svg"):
        path = figure.relative_to(ROOT).as_posix()
        files.append(File.generated(config, path, abs_src_path=str(figure)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links as they are in the repository, to where their targets are on the site."""
    here = page.file.src_uri
    origin = next((source for source, uri in TAKEN_ALONG.items() if uri == here), f"docs/{here}")

    def moved(match: re.Match[str]) -> str:
        start, target, anchor, end = match[1], match[2], match[3] or "", match[4]
        if ":" in target:
            return match[0]
        in_repository = posixpath.normpath(posixpath.join(posixpath.dirname(origin), target))
        uri = TAKEN_ALONG.get(in_repository, in_repository.removeprefix("docs/"))
        if files.get_file_from_path(uri) is not None:
            return f"{start}{posixpath.relpath(uri, posixpath.dirname(here) or '.')}{anchor}{end}"
        if not (ROOT / in_repository).exists():
            return match[0]  # a broken link, which the build reports
        return f"{start}{config.repo_url}/blob/main/{in_repository}{anchor}{end}"

    return LINK.sub(moved, markdown)


def _groups() -> dict[str, list[str]]:
    """Public names by the package they live in, in pipeline order."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for name, home in pb._HOME.items():
        found[home.split(".")[0]].append(name)
    return dict(found)


def _contents() -> str:
    """Every public name with the first line of what it says of itself."""
    lines = ["# API\n", "`import pocketbayes as pb`; what is listed here is `pb.NAME`.\n"]
    for group, names in _groups().items():
        lines += [f"\n## {GROUPS[group]}\n", "| | |", "|---|---|"]
        lines += [f"| [`{name}`]({name}.md) | {_summary(getattr(pb, name))} |" for name in names]
    lines += ["\n## Modules\n", "| | |", "|---|---|"]
    lines += [f"| [`{name}`](modules/{name}.md) | {_summary(getattr(pb, name))} |" for name in pb._MODULES]
    return "\n".join(lines) + "\n"


def _summary(value: Any) -> str:
    return " ".join((value.__doc__ or "").strip().split("\n\n")[0].split()).replace("|", "\\|")


def _options() -> str:
    """Every command with its options, from the code."""
    group: Any = typer.main.get_command(app)
    lines = ["# Options of the commands\n"]
    for name, command in group.commands.items():
        lines += [f"\n## {name}\n", _paragraphs(command.help), "| option | default | |", "|---|---|---|"]
        lines += [_option(parameter) for parameter in command.params]
    return "\n".join(lines) + "\n"


def _paragraphs(text: str) -> str:
    return "\n".join(line.strip() for line in text.replace("\b", "").splitlines()) + "\n"


def _option(parameter: Any) -> str:
    default, names = parameter.default, [*parameter.opts, *parameter.secondary_opts]
    shown = [
        f"`{name}`" for name in (names if parameter.param_type_name == "option" else [parameter.name.upper()])
    ]
    value = "" if default in (None, (), False, ...) or callable(default) else f"`{default}`"
    text = " ".join((getattr(parameter, "help", None) or "").split()).replace("|", "\\|")
    return f"| {', '.join(shown)} | {value} | {text} |"
