"""Compiles blocks of Python, given as JSON on standard input, and looks up what they name in the package.

Prints a line for each name of `gapless` that does not exist and each call that the function would refuse. The last line
is the number of names that were found. Modules that need a package that is absent are left out.
"""

import ast
import importlib
import inspect
import json
import sys


def follow(names):
    found = importlib.import_module(names[0])
    for at, name in enumerate(names[1:], 2):
        try:
            found = getattr(found, name)
        except AttributeError:
            if not inspect.ismodule(found):
                raise
            found = importlib.import_module(".".join(names[:at]))
    return found


def parts(node):
    behind = []
    while isinstance(node, ast.Attribute):
        behind.append(node.attr)
        node = node.value
    return [node.id, *reversed(behind)] if isinstance(node, ast.Name) else []


def imported(tree):
    """The names that stand for the package or something in it, with their full names."""
    known = {"gapless": ["gapless"]}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "gapless":
            known |= {one.asname or one.name: [*node.module.split("."), one.name] for one in node.names}
        elif isinstance(node, ast.Import):
            known |= {one.asname: one.name.split(".") for one in node.names if one.asname and one.name.startswith("gapless")}
    return known


def refused(function, call):
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a function of C
        return None
    # A catch-all that exists to refuse what it gets, with a suggestion.
    known = [one for one in signature.parameters.values() if not (one.kind is one.VAR_KEYWORD and "NoReturn" in str(one.annotation))]
    signature = signature.replace(parameters=known)
    if any(isinstance(argument, ast.Starred) for argument in call.args):
        return None
    try:
        signature.bind_partial(*call.args, **{one.arg: one.value for one in call.keywords if one.arg})
    except TypeError as error:
        return error
    return None


def is_absent(error):
    """Whether another package is missing, and not a module of this one."""
    while error.__cause__ is not None:
        error = error.__cause__
    return not (getattr(error, "name", None) or "").startswith("gapless")


def look(place, text):
    try:
        compile(text, place, "exec")
    except SyntaxError as error:
        print(place, error)
        return 0
    tree, found = ast.parse(text), 0
    known = imported(tree)
    for node in ast.walk(tree):
        names = parts(node.func if isinstance(node, ast.Call) else node)
        if not names or names[0] not in known:
            continue
        try:
            target = follow(known[names[0]] + names[1:])
        except (AttributeError, ImportError) as error:
            if isinstance(error, AttributeError) or not is_absent(error):
                print(f"{place}: {'.'.join(names)}: {error}")
            continue
        found += 1
        error = refused(target, node) if isinstance(node, ast.Call) else None
        if error:
            print(f"{place}: {'.'.join(names)}(): {error}")
    return found


print(sum([look(place, text) for place, text in json.load(sys.stdin)]))
