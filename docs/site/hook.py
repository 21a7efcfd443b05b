"""Pages of the site that are not below docs/, and the reference, which the code itself writes.

MkDocs calls the functions named `on_...` (https://www.mkdocs.org/user-guide/plugins/#events).
"""

import dataclasses
import functools
import importlib
import inspect
import os
import pkgutil
import posixpath
import re
import typing
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

import birdie_jax
import pallas_kernels
from birdie_jax.__main__ import VERBS
from birdie_jax.config_sections import Config, ModelConfig
from birdie_jax.models import model_names
from birdie_jax.models.layers import ShortConvolution
from birdie_jax.models.registry import ARCHITECTURES, mixer_sections
from birdie_jax.models.rg_lru import RGLRU
from birdie_jax.models.s4d import S4D
from birdie_jax.storage import describe_type
from tests.forked_runs import prepare_forks, run_module

REPOSITORY = Path(__file__).resolve().parents[2]
_OF_ROOT = ("README.md", "BUILD_NOTES.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
_LINK = re.compile(r"(\]\()([^)\s#]*)(#[^)\s]*)?(\))")
_LANGUAGES = {".py": "python", ".sh": "bash", ".yaml": "yaml"}
_ATTRIBUTE = re.compile(r"^    (\w+): (.*(?:\n {8,}.*)*)", re.MULTILINE)


def on_files(files: Files, config: Any) -> Files:
    """Add the pages of the root, the reference, and a page for each source file that a page links to."""
    for name in _OF_ROOT:
        _add(files, config, _site_path(name), (REPOSITORY / name).read_text(encoding="utf-8"))
    _add(files, config, "reference/configuration.md", _configuration())
    _add(files, config, "reference/command_line.md", _command_line())
    _add(files, config, "reference/models.md", _models())
    _add(files, config, "reference/python.md", _python())
    for name in sorted(_linked_sources()):
        _add(files, config, _site_path(name), _source_page(name))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Point the links of a page at pages of the site."""
    here = _repository_path(page.file.src_uri)
    return _LINK.sub(lambda link: _moved(link, here, page.file.src_uri), markdown)


def _add(files: Files, config: Any, path: str, content: str) -> None:
    files.append(File.generated(config, path, content=content))


def _site_path(name: str) -> str:
    """Return where the site has a file of the repository."""
    if name == "README.md":
        return "index.md"
    if name.startswith("docs/"):
        return name.removeprefix("docs/")
    return name if name in _OF_ROOT else f"source/{name}.md"


def _repository_path(page: str) -> str:
    """Return the file of the repository that a page is made of; links in it are relative to that file."""
    if page == "index.md":
        return "README.md"
    return page if page in _OF_ROOT else f"docs/{page}"


def _target(link: str, here: str) -> str:
    """Return the file of the repository that a link names; empty for a link to another host."""
    if not link or re.match(r"[a-z]+:", link):
        return ""
    return posixpath.normpath(posixpath.join(posixpath.dirname(here), link))


def _moved(link: re.Match[str], here: str, page: str) -> str:
    target = _target(link[2], here)
    if not target:
        return link[0]
    moved = os.path.relpath(_site_path(target), posixpath.dirname(page) or ".")
    return f"{link[1]}{moved}{link[3] or ''}{link[4]}"


def _linked_sources() -> set[str]:
    pages = [*(REPOSITORY / "docs").rglob("*.md"), *(REPOSITORY / name for name in _OF_ROOT)]
    found = set()
    for page in pages:
        here = page.relative_to(REPOSITORY).as_posix()
        for link in _LINK.finditer(page.read_text(encoding="utf-8")):
            target = _target(link[2], here)
            if target and not target.startswith("docs/") and target not in _OF_ROOT:
                found.add(target)
    return found


def _source_page(name: str) -> str:
    text = (REPOSITORY / name).read_text(encoding="utf-8")
    language = _LANGUAGES.get(Path(name).suffix, "text")
    return f"---\nsearch: {{exclude: true}}\n---\n\n# {name}\n\n````{language}\n{text}\n````\n"


def _configuration() -> str:
    """Return a page with every field of a configuration, a table for each section."""
    lines = [
        "# Configuration",
        "",
        "A configuration is a Python file that returns these fields. Set one on the command line with",
        "`--config.SECTION.FIELD=VALUE`, for example `--config.optimizer.learning_rate=2e-3`. A wrong",
        "value fails before anything is compiled; the message names the field and what it allows.",
        "",
    ]
    for name, section in _sections("", Config):
        documents, hints = _attributes(section), typing.get_type_hints(section)
        rows = [
            f"| `{field.name}` | {_cell(describe_type(hints[field.name]))} | `{_default(field)}` "
            f"| {_cell(documents[field.name])} |"
            for field in dataclasses.fields(section)
            if field.name in documents and not dataclasses.is_dataclass(hints[field.name])
        ]
        if rows:
            title = f"## `{name}`" if name else "## The run"
            purpose = (inspect.getdoc(section) or "").partition("\n")[0]
            lines += [title, "", purpose, "", "| field | type | default | meaning |", "|---|---|---|---|"]
            lines += [*rows, ""]
    return "\n".join(lines)


def _sections(name: str, section: type) -> list[tuple[str, type]]:
    """Return a section and those within it, each with its path below `config`."""
    found = [(name, section)]
    for field in dataclasses.fields(section):
        kind = typing.get_type_hints(section)[field.name]
        if dataclasses.is_dataclass(kind):
            found += _sections(f"{name}.{field.name}".lstrip("."), typing.cast(type, kind))
    if section is ModelConfig:
        found += [(f"{name}.{kind.section}", kind) for kind in mixer_sections()]
    return found


def _attributes(section: type) -> dict[str, str]:
    """Return the meaning of each field, as the docstring of its section has it."""
    documents = (inspect.getdoc(section) or "").partition("Attributes:\n")[2]
    return {name: " ".join(text.split()) for name, text in _ATTRIBUTE.findall(documents)}


def _default(field: dataclasses.Field) -> str:
    if field.default is not dataclasses.MISSING:
        return repr(field.default)
    made = field.default_factory() if field.default_factory is not dataclasses.MISSING else ""
    return repr(made)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


@functools.cache
def _command_line() -> str:
    """Return a page with the help of each verb."""
    lines = [
        "# Command line",
        "",
        "`birdie VERB` and `python -m birdie_jax.VERB` are the same. Launchers are",
        "`python -m launch.NAME`.",
        "",
    ]
    os.environ["COLUMNS"] = "100"
    prepare_forks()
    for verb in VERBS:
        module = verb if verb.startswith("launch.") else f"birdie_jax.{verb}"
        _, printed, errors = run_module(module, "--helpshort" if verb == "lm_eval" else "--help")
        text = (printed or errors).replace(f"{REPOSITORY}/", "")
        lines += [f"## {verb}", "", "```text", text.rstrip(), "```", ""]
    return "\n".join(lines)


def _models() -> str:
    """Return a page with the docstring of each mixer, which has its equations and their source."""
    lines = [
        "# Models",
        "",
        "Each model name with its sequence mixer. The text is that of the code. `h_t` is the state after",
        "token t. Half of it runs in reverse on the context in a bidirectional model.",
        "",
    ]
    mixers: dict[type, list[str]] = {}
    for name in model_names():
        architecture = ARCHITECTURES.find(name)
        mixers.setdefault(architecture.mixer or architecture.config, []).append(name)
    for mixer, names in mixers.items():
        lines += [f"## {', '.join(f'`{name}`' for name in names)}", "", *_documented(mixer)]
    lines += ["## Parts", "", "Layers that several of these share.", ""]
    for part in (RGLRU, S4D, ShortConvolution):
        lines += _documented(part)
    return "\n".join(lines)


def _documented(value: type) -> list[str]:
    return [f"::: {value.__module__}.{value.__name__}", "    options: {members: false}", ""]


def _python() -> str:
    """Return a page with the public names of each package; mkdocstrings writes their docstrings."""
    lines = ["# Python", "", "The public names of each package.", ""]
    for root in (birdie_jax, pallas_kernels):
        for found in pkgutil.iter_modules(root.__path__, f"{root.__name__}."):
            module = importlib.import_module(found.name) if found.ispkg else None
            if names := getattr(module, "__all__", []):
                purpose = (inspect.getdoc(module) or "").partition("\n")[0]
                lines += [f"## `{found.name}`", "", purpose, "", *_public(module, names)]
    return "\n".join(lines)


def _public(module: Any, names: list[str]) -> list[str]:
    values = {name: getattr(module, name) for name in names}
    kinds = (inspect.isclass, inspect.isfunction)
    shown = [name for name, value in values.items() if any(kind(value) for kind in kinds)]
    return [line for name in shown for line in (f"::: {module.__name__}.{name}", "")]
