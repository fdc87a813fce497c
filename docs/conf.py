"""Configuration of the documentation: sphinx-build -W docs OUT."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(ROOT / "docs" / "extensions"))

import optchain  # noqa: E402

project = "optchain"
author = "the optchain developers"
copyright = author
version = release = optchain.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "public_names",
]
exclude_patterns = ["_build"]
default_role = "py:obj"  # `name` in a docstring links to the object where there is one

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_type_aliases = {
    alias: alias for alias in ("Numeric", "Schedule", "ScalarOrSchedule", "MaskTree", "jax.typing.ArrayLike")
}
autosummary_generate = False
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_attr_annotations = False
napoleon_use_ivar = True
napoleon_use_rtype = False
maximum_signature_line_length = 88
python_display_short_literal_types = True
toc_object_entries_show_parents = "hide"
viewcode_line_numbers = False

html_theme = "furo"
html_title = f"optchain {release}"
html_show_sphinx = False
html_show_copyright = False
