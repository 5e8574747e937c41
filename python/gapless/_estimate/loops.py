"""Loops whose number of rounds follows from a value that is not known: the source says which lines end one.

A solver that runs until its error is small, or a search that runs until all sequences have ended, holds more the more
rounds it makes, and an estimate has seen one number of them.
"""

import ast
import linecache
from functools import lru_cache
from typing import Optional


def open_ended(place: str, answer: str) -> bool:
    """True if the line at `place` (FILE:LINE) decides how often a loop runs, and `answer`, which it got, does not mean
    that the loop went on to the end of what it goes through."""
    file, _, line = place.rpartition(":")
    test = _tests(file).get(int(line)) if line.isdigit() else None
    if test is None:
        return False
    bounded, leaves_if = test
    return not (bounded and leaves_if is not None and answer == ("false" if leaves_if else "true"))


@lru_cache(maxsize=64)
def _tests(file: str) -> "dict[int, tuple[bool, Optional[bool]]]":
    """The lines with a condition that ends a loop: whether that loop goes through something that ends by itself, and
    the answer of a plain or negated condition that leaves it."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError, RecursionError):
        return {}
    found: dict[int, tuple[bool, Optional[bool]]] = {}

    def note(test: ast.expr, bounded: bool, leaves_if: Optional[bool]) -> None:
        for line in range(test.lineno, (test.end_lineno or test.lineno) + 1):
            found.setdefault(line, (bounded, leaves_if))

    def visit(node: ast.AST, loop: Optional[ast.AST]) -> None:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            loop = None
        if isinstance(node, ast.While):
            note(node.test, False, None)
        if isinstance(node, ast.If) and loop is not None and (_leaves(node.body) or _leaves(node.orelse)):
            plain = not isinstance(node.test, ast.BoolOp)
            negated = isinstance(node.test, ast.UnaryOp) and isinstance(node.test.op, ast.Not)
            leaves_if = _leaves(node.body) ^ negated if plain else None
            note(node.test, not isinstance(loop, ast.While), leaves_if)
        inner = node if isinstance(node, (ast.For, ast.AsyncFor, ast.While)) else loop
        for child in ast.iter_child_nodes(node):
            visit(child, inner)

    visit(tree, None)
    return found


def _leaves(body: "list[ast.stmt]") -> bool:
    return any(isinstance(statement, (ast.Break, ast.Return)) for statement in body)
