"""What importing the package brings along."""

import ast
import pathlib
import subprocess
import sys

import optchain

ROOT = pathlib.Path(optchain.__file__).parent
# What the package may import anywhere. The demo's own needs are imported inside the functions that use them.
ALLOWED = {"jax", "numpy", "optchain"} | sys.stdlib_module_names
OPTIONAL = {"matplotlib", "sklearn", "tqdm", "flax"}


def python(code):
    """The output of Python code in a fresh interpreter where every warning is an error."""
    result = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    return result.stdout.split()


def imports(tree, inside_functions):
    """The top-level packages that a module imports: all, or only those outside functions."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "optchain" if node.level else node.module.partition(".")[0]
        elif inside_functions or not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            yield from imports(node, inside_functions)


def test_the_import_warns_of_nothing_brings_nothing_but_jax_and_starts_no_backend():
    # Which platform to use, and whether to use 64 bits, can still be chosen after the import.
    code = """
import sys
import jax, jax.numpy
before = set(sys.modules)
import optchain
new = {name.partition('.')[0] for name in set(sys.modules) - before}
jax.config.update('jax_enable_x64', True)
jax.config.update('jax_platforms', 'cpu')
jax.config.update('jax_num_cpu_devices', 3)
print(len(jax.devices()), jax.numpy.zeros(1).dtype, *new)
"""
    devices, dtype, *new = python(code)
    assert (devices, dtype) == ("3", "float64")
    assert "optchain" in new
    assert set(new) <= ALLOWED


def test_the_import_alone_warns_of_nothing():
    assert python("import optchain, sys; print('optax' in sys.modules)") == ["False"]


def test_no_module_imports_another_library():
    modules = sorted(ROOT.rglob("*.py"))
    assert len(modules) > 20
    for path in modules:
        tree = ast.parse(path.read_text())
        assert set(imports(tree, inside_functions=False)) <= ALLOWED, path
        assert set(imports(tree, inside_functions=True)) <= ALLOWED | OPTIONAL, path


def test_only_the_public_modules_of_jax_are_imported():
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            else:
                continue
            hidden = [name for name in names if name.startswith(("jax.", "jaxlib")) and "._" in name]
            assert not hidden, (path, hidden)


def test_the_core_imports_nothing_above_it():
    for path in (ROOT / "core").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("optchain"):
                assert node.module.startswith("optchain.core"), (path, node.module)
