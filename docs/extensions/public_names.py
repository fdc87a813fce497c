"""The directive ``public-names``: documents what a module publishes, from the docstrings.

.. code-block:: rst

    .. public-names:: optchain
       :rooms: core

lists the public names of ``optchain`` that are defined below ``optchain.core``, in the order in which the module has
them: first a table, then each one in full. ``:rooms:`` takes several rooms; ``:constants:`` adds the names that no room
defines, such as type aliases; without these two it takes every public name of the module. ``:beyond: optchain`` leaves
out what ``optchain`` publishes by the same name. A name that a page should list and none does is a warning, so that the
reference stays complete.
"""

from __future__ import annotations

import importlib
import inspect
import re
import types

from docutils import nodes
from docutils.parsers.rst import Directive, directives
from docutils.statemachine import StringList
from sphinx.util import logging

logger = logging.getLogger(__name__)


def public_names(module) -> list[str]:
    """What `module` publishes: its ``__all__``, or all that is neither a module nor starts with an underscore."""
    names = getattr(module, "__all__", None)
    if names is None:
        names = [name for name in vars(module) if not name.startswith("_") and name != "annotations"]
    return [
        name for name in names if not name.startswith("__") and not isinstance(getattr(module, name), types.ModuleType)
    ]


def room_of(value, package: str) -> str:
    """The first part below `package` of the module that defines a value; empty if none below it does."""
    module = getattr(value, "__module__", None) or ""
    return module.removeprefix(package + ".").split(".")[0] if module.startswith(package + ".") else ""


def is_described(value) -> bool:
    return inspect.isclass(value) or inspect.isroutine(value)


def entry(module: str, name: str, value) -> list[str]:
    """The reStructuredText that documents one name."""
    full = f"{module}.{name}"
    if inspect.isclass(value):
        own_base = any(room_of(base, "optchain") for base in value.__bases__)
        return [f".. autoclass:: {full}", "   :members:", *["   :show-inheritance:"] * own_base, ""]
    if is_described(value):
        return [f".. autofunction:: {full}", ""]
    return [f".. py:data:: {full}", ""]


class PublicNames(Directive):
    required_arguments = 1
    option_spec = {"rooms": str.split, "constants": directives.flag, "beyond": str}  # noqa: RUF012

    def run(self):
        module = importlib.import_module(self.arguments[0])
        wanted = {name: value for name in public_names(module) if self.wants(value := getattr(module, name))}
        others = vars(importlib.import_module(self.options["beyond"])) if "beyond" in self.options else {}
        chosen = {name: value for name, value in wanted.items() if others.get(name) is not value}
        environment = self.state.document.settings.env
        if not hasattr(environment, "published"):
            environment.published = {}
        on_page = environment.published.setdefault(environment.docname, {})
        on_page.setdefault(module.__name__, set()).update(wanted)

        lines = []
        if described := [name for name, value in chosen.items() if is_described(value)]:
            lines += [".. autosummary::", "   :nosignatures:", ""]
            lines += [*(f"   {module.__name__}.{name}" for name in described), ""]
        for name, value in chosen.items():
            lines += entry(module.__name__, name, value)
        container = nodes.Element()
        self.state.nested_parse(StringList(lines, source=f"<{module.__name__}>"), self.content_offset, container)
        return container.children

    def wants(self, value) -> bool:
        if not {"rooms", "constants"} & set(self.options):
            return True
        room = room_of(value, self.arguments[0])
        return room in self.options.get("rooms", ()) if room else "constants" in self.options


def purge(app, environment, docname):
    getattr(environment, "published", {}).pop(docname, None)


def report_missing(app, environment):
    """Warns of each public name of a module that some page lists but that no page has."""
    listed: dict[str, set[str]] = {}
    for page in getattr(environment, "published", {}).values():
        for module, names in page.items():
            listed.setdefault(module, set()).update(names)
    for module, names in listed.items():
        if missing := [name for name in public_names(importlib.import_module(module)) if name not in names]:
            logger.warning("the API reference lacks these names of %s: %s", module, ", ".join(missing))


def skip_field(app, what, name, member, skip, options):
    """Leaves out the fields of named tuples, which the docstring of the class describes."""
    return True if type(member).__name__ == "_tuplegetter" else None


def plain_aliases(app, what, name, value, options, signature, returned):
    """Writes the type aliases of ``autodoc_type_aliases`` by their bare names inside unions as well."""
    plain = re.compile(r"TypeAliasForwardRef\('([\w.]+)'\)")
    return tuple(text and plain.sub(r"\1", text) for text in (signature, returned))


def setup(app):
    app.add_directive("public-names", PublicNames)
    app.connect("autodoc-process-signature", plain_aliases)
    app.connect("autodoc-skip-member", skip_field)
    app.connect("env-purge-doc", purge)
    app.connect("env-check-consistency", report_missing)
    return {"parallel_read_safe": False}
