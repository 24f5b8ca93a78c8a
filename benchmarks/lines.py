"""Lines of code by package: neither blank, nor a comment, nor a docstring.

python -m benchmarks.lines [FOLDER]
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "pocketbayes"
SILENT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def code_lines(text: str) -> int:
    """How many lines of a module hold code."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    lines = {n for t in tokens if t.type not in SILENT for n in range(t.start[0], t.end[0] + 1)}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            lines -= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return len(lines)


def main() -> None:
    root, total = Path(sys.argv[1]) if len(sys.argv) > 1 else SOURCE, Counter[str]()
    for path in sorted(root.rglob("*.py")):
        place = path.relative_to(root).parts
        total[place[0] if len(place) > 1 else "modules"] += code_lines(path.read_text())
    for package, count in (*total.most_common(), ("all", total.total())):
        print(f"{package:12} {count:6,}")


if __name__ == "__main__":
    main()
