"""Runs the code of README.md and of the documentation.

The ```python blocks of a page run from top to bottom in one namespace that is new for each page. A block right after
the comment ``<!-- not executed -->`` is only compiled.
"""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
NOT_EXECUTED = "<!-- not executed -->"
FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>`{3,}) *(?P<info>[^`]*)$")
TEST_REFERENCE = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
LINK = re.compile(r"\[[^\]]*\]\((?!#|\w+:)([^)#\s]+)(?:#[^)]*)?\)")


class Block(NamedTuple):
    """The source of one block, the line of the page where it starts (counted from 0), and whether it runs."""

    source: str
    line: int
    executed: bool


def read_blocks(text: str) -> list[Block]:
    blocks = []
    opened: re.Match | None = None
    start = 0
    previous = ""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        match = FENCE.match(line)
        if opened is None:
            if match:
                opened, start = match, number + 1
            elif line.strip():
                previous = line.strip()
        elif match and match["ticks"].startswith(opened["ticks"]) and not match["info"]:
            if opened["info"].split()[:1] == ["python"]:
                indent = len(opened["indent"])
                source = "\n".join(inner[indent:] for inner in lines[start:number])
                blocks.append(Block(source, start, executed=previous != NOT_EXECUTED))
            opened, previous = None, line
    if opened is not None:
        raise ValueError(f"the block that opens in line {start} is never closed")
    return blocks


def pages() -> list[Path]:
    documents = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [page for page in documents if "_build" not in page.parts]


def pages_with_code() -> list[Path]:
    return [page for page in pages() if read_blocks(page.read_text(encoding="utf-8"))]


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", pages_with_code(), ids=name_of)
def test_code_of_a_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module = types.ModuleType("document")
    monkeypatch.setitem(sys.modules, "document", module)  # so that what a page defines can be pickled
    for block in read_blocks(page.read_text(encoding="utf-8")):
        padded = "\n" * block.line + block.source  # a traceback then shows the line of the page
        code = compile(padded, str(page), "exec", dont_inherit=True)
        if block.executed:
            exec(code, module.__dict__)


def test_readme_has_code():
    assert ROOT / "README.md" in pages_with_code()


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_links_between_files_lead_somewhere(page):
    text = page.read_text(encoding="utf-8")
    missing = [target for target in LINK.findall(text) if not (page.parent / target).exists()]
    assert not missing


def rows_of_differences() -> list[str]:
    lines = (ROOT / "docs" / "differences.md").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line.startswith("|") and not line.startswith(("| difference |", "|---"))]


@pytest.mark.parametrize("row", rows_of_differences(), ids=lambda row: row[2:60])
def test_each_difference_names_tests_that_exist(row):
    _, difference, reason, tests, _ = row.split("|")
    assert difference.strip()
    assert reason.strip()
    references = TEST_REFERENCE.findall(tests)
    assert references
    assert tests.count("`") == 2 * len(references)
    for file, function in references:
        assert f"\ndef {function}(" in (ROOT / file).read_text(encoding="utf-8"), f"{file}::{function}"


class TestReadBlocks:
    def test_takes_python_blocks_only(self):
        text = "a\n```bash\nls\n```\n\n```python\nx = 1\ny = 2\n```\n"
        assert read_blocks(text) == [Block("x = 1\ny = 2", 6, executed=True)]

    def test_a_marked_block_is_not_executed(self):
        text = f"{NOT_EXECUTED}\n\n```python\nx = 1\n```\n```python\ny = 2\n```\n"
        assert [block.executed for block in read_blocks(text)] == [False, True]

    def test_indentation_of_the_fence_is_removed(self):
        assert read_blocks("- a\n\n  ```python\n  if x:\n    y\n  ```\n")[0].source == "if x:\n  y"

    def test_a_block_inside_a_longer_fence_is_text(self):
        assert read_blocks("````text\n```python\nx = 1\n```\n````\n") == []

    def test_an_open_block_is_an_error(self):
        with pytest.raises(ValueError, match="line 1 is never closed"):
            read_blocks("```python\nx = 1\n")
