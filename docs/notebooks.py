"""Notebooks as pages of the site, with the pictures that they were saved with.

As a script it runs the notebooks named, in full, and keeps what they print and draw.
"""

import os
import pathlib
import posixpath
import sys
import tempfile

import nbformat
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from nbclient import NotebookClient
from nbconvert import MarkdownExporter


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Puts a page and its pictures in the place of every notebook."""
    for file in [f for f in files if f.src_uri.endswith(".ipynb")]:
        folder, name = posixpath.split(file.src_uri)
        stem = name.removesuffix(".ipynb")
        resources = {"output_files_dir": f"{stem}_files", "unique_key": stem}
        text, made = MarkdownExporter().from_filename(file.abs_src_path, resources)
        page = posixpath.join(folder, f"{stem}.md")
        files.remove(file)
        files.append(File.generated(config, page, content=text))
        for picture, content in made["outputs"].items():
            path = posixpath.join(folder, picture)
            files.append(File.generated(config, path, content=content))
    return files


def run(path: pathlib.Path) -> None:
    """Runs a notebook in a folder of its own; warnings are not kept, they name the machine."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(notebook, resources={"metadata": {"path": folder}}).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = [out for out in cell.outputs if out.get("name") != "stderr"]
    partial = path.with_suffix(".partial")
    nbformat.write(notebook, partial)
    os.replace(partial, path)


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        run(pathlib.Path(argument))
