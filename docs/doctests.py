"""For the site alone: examples in docstrings, bare in the style of Keras, become code blocks."""

import re
from typing import Any

import griffe

# A run of lines that begins with a prompt and ends before an empty line, a fence or the end.
_EXAMPLE = re.compile(r"^( *)>>> .*(?:\n\1(?!```).*\S)*", re.MULTILINE)


class Doctests(griffe.Extension):
    """Puts a fence around every example that has none."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    """The text with its examples in fences; the indentation stays.

    >>> print(fenced("Example:\\n\\n>>> 1 + 1\\n2\\n\\nMore."))
    Example:
    <BLANKLINE>
    ```pycon
    >>> 1 + 1
    2
    ```
    <BLANKLINE>
    More.
    """
    return _EXAMPLE.sub(r"\1```pycon\n\g<0>\n\1```", text)
