"""Text that ships with Python and Debian, to train the tiny model on.

Python's reference topics, docstrings and sources (PSF licence 2), and, where Debian put them, the
common licences (free to copy verbatim) and Perl's documentation (GPL or Artistic). A part that is
not installed is left out and named by `describe`.
"""

from __future__ import annotations

import ast
import random
import re
import sysconfig
import tokenize
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

DEBIAN_LICENSES = Path("/usr/share/common-licenses")
DEBIAN_PERL = Path("/usr/share/perl")


@dataclass(frozen=True, slots=True)
class Document:
    """One text with the part of the corpus that it comes from."""

    part: str
    text: str


def python_topics() -> Iterator[Document]:
    """The language reference as `help()` shows it."""
    from pydoc_data import topics

    for name in sorted(topics.topics):
        yield Document("python-reference", topics.topics[name])


def python_library(prose: bool) -> Iterator[Document]:
    """The standard library: its docstrings when `prose`, else its sources (tests left out)."""
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root).as_posix()
        if re.search(r"(^|/)(test|tests|site-packages|idlelib|lib2to3|encodings)/", relative):
            continue
        try:
            with tokenize.open(path) as file:
                source = file.read()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tree = ast.parse(source)
        except (SyntaxError, UnicodeDecodeError, OSError):
            continue
        if not prose:
            yield Document("python-source", source)
            continue
        strings = [
            text
            for node in ast.walk(tree)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and (text := ast.get_docstring(node))
            and len(text) > 60
        ]
        if strings:
            yield Document("python-docstrings", "\n\n".join(strings))


def debian_texts() -> Iterator[Document]:
    """Licences and Perl's pods, where Debian installed them."""
    if DEBIAN_LICENSES.is_dir():
        for path in sorted(DEBIAN_LICENSES.iterdir()):
            if path.is_file() and not path.is_symlink():
                yield Document("debian-licences", path.read_text(errors="ignore"))
    if DEBIAN_PERL.is_dir():
        for path in sorted(DEBIAN_PERL.rglob("*")):
            if path.suffix in (".pod", ".pm") and path.is_file() and not path.is_symlink():
                text = path.read_text(errors="ignore")
                pod = re.findall(r"^=head1.*?(?=^=cut|\Z)", text, re.S | re.M)
                if pod:
                    yield Document("debian-perl", "\n".join(pod))


def load(code_share: float = 0.4, seed: int = 0) -> list[Document]:
    """All parts, shuffled; source code cut to `code_share` of the characters."""
    prose = [*python_topics(), *python_library(prose=True), *debian_texts()]
    code = list(python_library(prose=False))
    rng = random.Random(seed)
    rng.shuffle(code)
    budget = sum(len(d.text) for d in prose) * code_share / (1 - code_share)
    kept = []
    for document in code:
        if budget < 0:
            break
        kept.append(document)
        budget -= len(document.text)
    documents = prose + kept
    rng.shuffle(documents)
    return documents


def describe(documents: list[Document]) -> str:
    """One line: each part's size in characters, and the parts that are not there."""
    parts = ["python-reference", "python-docstrings", "python-source"]
    parts += ["debian-licences", "debian-perl"]
    sizes = {p: sum(len(d.text) for d in documents if d.part == p) for p in parts}
    have = ", ".join(f"{p} {n / 1e6:.1f} M" for p, n in sizes.items() if n)
    lack = [p for p, n in sizes.items() if not n]
    return f"{have} characters" + (f"; not installed here: {', '.join(lack)}" if lack else "")
