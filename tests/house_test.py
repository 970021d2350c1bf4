"""The house itself: rooms, one-way dependencies, sizes, names."""

import ast
import collections
import pathlib
import subprocess

import pytest

from tests.support.paths import ROOT

# Each may import those before it, and what lies directly in `udc_tf/`.
ROOMS = (
    "quantize",
    "layers",
    "graph",
    "cost",
    "compact",
    "training",
    "search",
    "finetune",
    "compress",
    "models",
    "export",
    "report",
    "cli",
)
MODULES_AT_THE_TOP = 12
LINES_OF_A_MODULE = 400
LINES_OF_A_FUNCTION = 70


def sources(*folders: str) -> list[pathlib.Path]:
    """Tracked and new Python files; `models` and `export` by their folders at the top."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    if listed.returncode:
        pytest.skip("not a git checkout: the list of source files comes from git")
    files = (ROOT / name for name in listed.stdout.split() if not name.startswith("bazel/"))
    wanted = [f for f in files if f.is_file()]
    return [f for f in wanted if not folders or f.relative_to(ROOT).parts[0] in folders]


def module_name(path: pathlib.Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    if parts[0] in ("models", "export"):
        parts = ("udc_tf", *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: pathlib.Path, known: set[str], everywhere: bool = True) -> set[str]:
    """Modules of this repository that a file imports; inside functions, too, if `everywhere`."""
    tree = ast.parse(path.read_text())
    nodes = ast.walk(tree) if everywhere else _at_import(tree)
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inside = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= inside & known or {node.module}
            found |= {node.module} if inside - known else set()
    return found & known


def _at_import(tree: ast.Module):
    """Statements that run when a module is imported."""
    waiting = list(tree.body)
    while waiting:
        node = waiting.pop()
        if is_for_type_checkers(node):
            continue
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            waiting.extend(n for n in ast.iter_child_nodes(node) if isinstance(n, ast.stmt))


def is_for_type_checkers(node: ast.AST) -> bool:
    """Whether it is `if TYPE_CHECKING:`, which never runs."""
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def room_of(module: str) -> str | None:
    """The room of a module; None for what lies directly in `udc_tf/`."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[0] == "udc_tf" and parts[1] in ROOMS else None


def wrong_way(module: str, imported: str) -> bool:
    """Whether a room imports one that stands above it."""
    here, there = room_of(module), room_of(imported)
    if here is None or there is None or here == there:
        return False
    return ROOMS.index(there) > ROOMS.index(here) or (here, there) == ("export", "models")


class TestDependencies:
    def test_point_one_way(self):
        modules = {module_name(p): p for p in sources("udc_tf", "models", "export")}
        wrong = {
            f"{module} imports {imported}"
            for module, path in modules.items()
            for imported in imports_of(path, set(modules))
            if wrong_way(module, imported)
        }
        assert not wrong

    def test_a_lower_room_that_imports_a_higher_one_is_seen(self, tmp_path):
        planted = tmp_path / "masks.py"
        planted.write_text("def f():\n    from udc_tf.search import plan\n")
        (imported,) = imports_of(planted, {"udc_tf.search.plan"})
        assert wrong_way("udc_tf.quantize.masks", imported)
        assert not wrong_way("udc_tf.search.plan", "udc_tf.quantize.masks")

    def test_the_layers_know_nothing_of_plans(self):
        modules = {module_name(p): p for p in sources("udc_tf")}
        for module, path in modules.items():
            if room_of(module) == "layers":
                rooms = {room_of(m) for m in imports_of(path, set(modules))}
                assert rooms <= {None, "layers", "quantize"}, module

    def test_there_are_no_cycles(self):
        modules = {module_name(p): p for p in sources()}
        edges = {m: imports_of(p, set(modules), everywhere=False) for m, p in modules.items()}
        done: set[str] = set()

        def visit(module: str, trail: tuple[str, ...]) -> None:
            assert module not in trail, " -> ".join((*trail, module))
            if module not in done:
                for imported in edges[module] - {module}:
                    visit(imported, (*trail, module))
                done.add(module)

        for module in edges:
            visit(module, ())


class TestSizes:
    def test_few_modules_lie_directly_in_the_package(self):
        flat = [p.name for p in sources("udc_tf") if p.parent == ROOT / "udc_tf"]
        assert len(flat) <= MODULES_AT_THE_TOP, flat

    def test_modules_are_short(self):
        lines = {str(p.relative_to(ROOT)): len(p.read_text().splitlines()) for p in sources()}
        assert {p: n for p, n in lines.items() if n > LINES_OF_A_MODULE} == {}

    def test_functions_are_short(self):
        long = {}
        for path in sources():
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    lines = _lines_of_code(node)
                    if lines > LINES_OF_A_FUNCTION:
                        long[f"{path.relative_to(ROOT)}:{node.name}"] = lines
        assert long == {}


def _lines_of_code(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """From `def` to the end, without the docstring."""
    first = function.body[0]
    documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    docstring = first.end_lineno - first.lineno + 1 if documented else 0
    return function.end_lineno - function.lineno + 1 - docstring


class TestNames:
    def test_no_two_modules_share_one(self):
        names = collections.Counter(
            p.stem for p in sources("udc_tf", "models", "export") if p.stem != "__init__"
        )
        packages = {
            p.parent.name for p in sources("udc_tf", "models", "export") if p.stem == "__init__"
        }
        assert {n: c for n, c in names.items() if c > 1} == {}
        assert packages & set(names) == set()
