"""Executes every notebook from top to bottom in a kernel of its own."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted(path for path in (ROOT / "notebooks").rglob("*.ipynb") if ".ipynb_checkpoints" not in path.parts)


def test_there_are_notebooks():
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_notebook_runs(path, tmp_path, monkeypatch):
    # The kernel imports the package of this tree, and keeps its files out of the home folder.
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]))
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    work = tmp_path / "work"
    work.mkdir()
    kernel = nbclient.NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": work}}
    )
    kernel.create_kernel_manager()
    kernel.km.kernel_spec.argv[0] = sys.executable  # this interpreter, whatever kernels are installed for the user
    kernel.execute()
    ran = [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip()]
    assert ran
    assert all(cell.execution_count for cell in ran)
