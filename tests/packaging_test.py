"""The package as others get it: a wheel, Bazel targets, import names."""

import ast
import collections
import os
import pathlib
import shutil
import subprocess
import sys
import zipfile

import pytest

import udc_tf
from tests.house_test import is_for_type_checkers
from tests.support.paths import ROOT


def _tracked(pattern: str) -> list[str]:
    """Files of the tree by pattern, without what is ignored; links are not followed."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", pattern],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    if listed.returncode:
        pytest.skip("not a git checkout: the list of source files comes from git")
    return [f for f in listed.stdout.split() if (ROOT / f).exists()]


def _under_package(path: str) -> str:
    """models/x.py and export/x.py by the names that they import under."""
    top = path.split("/")[0]
    return f"udc_tf/{path}" if top in ("models", "export") else path


class TestWheel:
    @pytest.fixture(scope="class")
    def installed(self, tmp_path_factory):
        folder = tmp_path_factory.mktemp("wheel")
        source = folder / "source"
        source.mkdir()
        for file in _tracked("*"):
            (source / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / file, source / file, follow_symlinks=False)
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
        build = ["wheel", ".", "--no-deps", "--no-build-isolation", "-w", str(folder)]
        subprocess.run([*pip, *build], cwd=source, check=True, capture_output=True)
        (wheel,) = folder.glob("*.whl")
        target = folder / "empty"
        install = ["install", "--no-deps", "--target", str(target), str(wheel)]
        subprocess.run([*pip, *install], check=True, capture_output=True)
        return wheel, target

    def test_top_level_is_udc_tf_alone(self, installed):
        wheel, target = installed
        tops = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
        assert {t for t in tops if not t.endswith(".dist-info")} == {"udc_tf"}
        assert not (target / "models").exists() and not (target / "export").exists()

    def test_everything_is_in_it(self, installed):
        _, target = installed
        sources = [*_tracked("udc_tf/*.py"), *_tracked("models/*.py"), *_tracked("export/*.py")]
        sources += [f for f in _tracked("export/firmware/*") if not f.endswith(".py")]
        sources.append("udc_tf/py.typed")
        missing = [f for f in sources if not (target / _under_package(f)).exists()]
        assert not missing

    def test_it_has_the_version_that_the_package_tells(self, installed):
        wheel, _ = installed
        assert wheel.name.split("-")[1] == udc_tf.__version__
        for file, line in (
            ("MODULE.bazel", f'    version = "{udc_tf.__version__}",'),
            ("CITATION.cff", f"version: {udc_tf.__version__}"),
        ):
            assert line in (ROOT / file).read_text().splitlines(), file

    def test_imports_from_the_wheel(self, installed):
        _, target = installed
        script = "import udc_tf, udc_tf.models, udc_tf.export as e; print(udc_tf.__file__)"
        environment = {**os.environ, "PYTHONPATH": str(target), "TF_CPP_MIN_LOG_LEVEL": "3"}
        done = subprocess.run(
            [sys.executable, "-c", script], cwd=target, env=environment, capture_output=True,
            text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(str(target))


class TestBazel:
    def _targets(self) -> dict[str, list[str]]:
        """Target -> sources, by evaluating the BUILD file as the Python that it also is."""
        targets: dict[str, list[str]] = {}

        def files(patterns, exclude=()):
            def found(patterns):
                return {str(p.relative_to(ROOT)) for g in patterns for p in _glob(g)}

            return sorted(found(patterns) - found(exclude))

        def rule(name, srcs, **_):
            targets[name] = srcs

        names = {
            "load": lambda *_: None, "package": lambda **_: None, "glob": files,
            "py_library": rule, "py_test": rule,
        }  # fmt: skip
        exec(compile((ROOT / "BUILD").read_text(), "BUILD", "exec"), names)
        return targets

    def test_every_file_is_in_exactly_one_target(self):
        owners = collections.Counter(f for srcs in self._targets().values() for f in srcs)
        wanted = [
            _under_package(f) for f in _tracked("*.py") if not f.startswith(("bazel/", "docs/"))
        ]
        assert {f: owners[f] for f in wanted if owners[f] != 1} == {}

    @pytest.mark.skipif(shutil.which("bazel") is None, reason="needs Debian's bazel-bootstrap")
    def test_bazel_resolves_every_target(self, tmp_path):
        # Not deps(): that would load Bazel's own tools, which it downloads.
        everything = "//:all + " + " + ".join(
            f"labels({what}, //:all)" for what in ("srcs", "data", "deps")
        )
        query = ["bazel", f"--output_user_root={tmp_path}", "query", everything]
        done = subprocess.run(query, cwd=ROOT, capture_output=True, text=True, timeout=300)
        subprocess.run([*query[:2], "shutdown"], cwd=ROOT, capture_output=True)
        assert done.returncode == 0, done.stderr[-2000:]
        listed = set(done.stdout.split())
        for name, sources in self._targets().items():
            assert f"//:{name}" in listed
            assert all(f"//:{source}" in listed for source in sources)


def _glob(pattern: str) -> list[pathlib.Path]:
    """Like Bazel's: links to folders are followed."""
    import glob

    found = glob.glob(str(ROOT / pattern), recursive=True)
    if "**" in pattern:
        # Python's ** does not go through links; name the two there are.
        for link in ("models", "export"):
            base = f"udc_tf/{link}/"
            if pattern.startswith("udc_tf/**"):
                found += glob.glob(str(ROOT / base / pattern[len("udc_tf/") :]), recursive=True)
    return [pathlib.Path(f) for f in dict.fromkeys(found) if os.path.isfile(f)]


class TestDependencies:
    """models and export use the core; the core knows neither; nobody imports them barely."""

    def _imports(self, path: str) -> set[str]:
        names = set()
        tree = ast.parse((ROOT / path).read_text())
        unseen = {
            id(inside)
            for node in ast.walk(tree)
            if is_for_type_checkers(node)
            for inside in ast.walk(node)
        }
        for node in ast.walk(tree):
            if id(node) in unseen:
                continue
            if isinstance(node, ast.Import):
                names |= {a.name for a in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                names.add(node.module)
                names |= {f"{node.module}.{a.name}" for a in node.names}
        return names

    def test_core_knows_neither_models_nor_export(self):
        on_top = ("udc_tf/cli/", "udc_tf/report")
        for path in _tracked("udc_tf/*.py"):
            if not path.startswith(on_top):
                wrong = {
                    n for n in self._imports(path)
                    if n.startswith(("udc_tf.models", "udc_tf.export", "udc_tf.cli"))
                }  # fmt: skip
                assert not wrong, path

    def test_never_by_bare_names_and_never_tf_keras(self):
        for path in _tracked("*.py"):
            bare = {n for n in self._imports(path) if n.split(".")[0] in ("models", "export")}
            assert not bare, path
            if "tfmot" not in path:
                assert "tf." + "keras" not in (ROOT / path).read_text(), path
