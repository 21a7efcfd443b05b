"""The shell commands that pages, docstrings and scripts show, as arguments."""

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).resolve().parents[2]

_SHELL_BLOCKS = ("bash", "sh", "shell", "console")
# The start of a command in an indented block, in a block without a language, and in inline code.
_COMMAND = re.compile(
    r"(\$ )?((\.venv/bin/)?python3? (-m )?[\w./]+|bash \S+\.sh|\. \S+\.sh"
    r"|(\.venv/bin/)?pip |birdie [a-z-])"
)
_INLINE = re.compile(r"(?<!`)`([^`]+)`(?!`)")
_LOOP = re.compile(r"for (?P<name>\w+) in (?P<first>\S+)[^;]*; do (?P<body>.*); done")
_SEPARATORS = {"&&", "||", "|", ";", "&"}


class PageCommand(NamedTuple):
    """A simple command: one program with its arguments.

    Attributes:
        page: the path of the file that shows it, relative to the repository.
        arguments: the program and its arguments, as a shell reads them.
        whole: whether it is in a block, to be run unchanged; inline code may omit options, or contain DIR
            for a folder.
    """

    page: str
    arguments: tuple[str, ...]
    whole: bool


def commands_of_repository() -> list[PageCommand]:
    """Return the commands of README.md, docs/, and the docstrings of configs/, launch/ and the verbs."""
    found = []
    for path in [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]:
        found += commands_of_page(_relative(path), path.read_text(encoding="utf-8"))
    for folder in ("configs", "launch", "birdie_jax"):
        for path in sorted((REPOSITORY / folder).glob("*.py")):
            docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
            found += commands_of_prose(_relative(path), docstring or "")
    return list(dict.fromkeys(found))


def commands_of_page(page: str, text: str) -> list[PageCommand]:
    """Return the commands of a Markdown page: from its code blocks, then from its prose."""
    found, prose, language, block = [], [], None, []
    for line in text.splitlines():
        fence = re.match(r"\s*```+(\w*)", line)
        if fence is None:
            (prose if language is None else block).append(line)
        elif language is None:
            language, block = fence.group(1), []
        else:
            found += [PageCommand(page, each, True) for each in _commands_of_block(language, block)]
            language = None
    return found + commands_of_prose(page, "\n".join(prose))


def commands_of_prose(page: str, text: str) -> list[PageCommand]:
    """Return the commands of a text: from its indented blocks, then from its inline code."""
    blocks = re.findall(r"(?:^ {4,}.*\n?)+", text, re.MULTILINE)
    found = [each for block in blocks for each in _commands_of_block("", block.splitlines())]
    return [PageCommand(page, each, True) for each in found] + _inline(page, text)


def commands_of_script(text: str) -> list[tuple[str, ...]]:
    """Return the commands of a shell script that start Python modules, without variables."""
    lines = [line.strip() for line in text.replace("\\\n", " ").splitlines()]
    commands = [line for line in lines if re.match(r"\S*python3? -m ", line)]
    plain = [re.sub(r'"\$@"', "", re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", line)) for line in commands]
    return [each for line in plain for each in simple_commands(line)]


def simple_commands(line: str) -> Iterator[tuple[str, ...]]:
    """Yield the simple commands of a shell line, without redirections and assignments."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    command: list[str] = []
    for word in [*lexer, ";"]:
        if word in _SEPARATORS:
            while command and re.match(r"[A-Za-z_]\w*=", command[0]):
                command.pop(0)
            if command:
                yield tuple(command)
            command = []
        else:
            command.append(word)


def _commands_of_block(language: str, lines: list[str]) -> Iterator[tuple[str, ...]]:
    if language not in ("", *_SHELL_BLOCKS):
        return
    text = re.sub(r"\\\n\s*", " ", "\n".join(line.strip() for line in lines))
    here = None
    for shown_line in text.splitlines():
        line = _first_pass(shown_line)
        if here is not None:
            here = None if line == here else here
            continue
        typed, document, rest = line.partition("<<")
        here = rest.strip(" -'") if document else None
        shown = {"console": typed.startswith("$ "), "": _COMMAND.match(typed)}
        if shown.get(language, True):
            yield from simple_commands(typed.removeprefix("$ "))


def _first_pass(line: str) -> str:
    """Return the commands of a loop's first pass, with its variable and its sums in numbers."""
    loop = _LOOP.fullmatch(line)
    if loop is None:
        return line
    body = re.sub(
        rf"\$\(\({loop['name']} \+ (\d+)\)\)",
        lambda sum_: str(int(loop["first"]) + int(sum_[1])),
        loop["body"],
    )
    return body.replace(f"${loop['name']}", loop["first"])


def _inline(page: str, text: str) -> list[PageCommand]:
    found = []
    for code in _INLINE.findall(text):
        line = " ".join(code.split())
        if _COMMAND.match(line):
            found += [PageCommand(page, each, False) for each in simple_commands(line.removeprefix("$ "))]
    return found


def _relative(path: Path) -> str:
    return str(path.relative_to(REPOSITORY))
