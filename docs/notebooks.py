"""Notebooks as pages of the site, with the pictures that they were saved with."""

import posixpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
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
