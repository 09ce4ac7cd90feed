"""Let mkdocs find the figures of results/, which lie beside docs/ and not in it."""

from pathlib import Path

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent


def on_files(files: Files, *, config) -> Files:
    """Add every figure, under the path at which pages of results refer to it."""
    for figure in sorted((ROOT / "results").glob("*/*.png")):
        path = str(figure.relative_to(ROOT))
        files.append(File(path, str(ROOT), config["site_dir"], config["use_directory_urls"]))
    return files


def on_page_markdown(markdown: str, *, page, config, files) -> str:
    """Point pages of results to the figures as the site has them."""
    return markdown.replace("](../../results/", "](")
