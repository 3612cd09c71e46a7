# SPDX-License-Identifier: Apache-2.0
"""Parts of the daemon are whole once they are made: none is None, and none gets a callback later."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ROOT / "hypervisor"
OTHERS = ("top", "simulator", "webhook")
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef


def trees() -> dict[str, ast.Module]:
    """Return the daemon's sources, without those of other programs."""
    paths = sorted(path for path in PRODUCT.rglob("*.py") if path.relative_to(PRODUCT).parts[0] not in OTHERS)
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text(encoding="utf-8")) for path in paths}


def classes(tree: ast.Module) -> Iterator[ast.ClassDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def is_value(made: ast.ClassDef) -> bool:
    """Return True for data, protocols and errors: they are no parts."""
    bases = {ast.unparse(base) for base in made.bases}
    is_data = any("dataclass" in ast.unparse(one) for one in made.decorator_list)
    return is_data or any(base.endswith(("Protocol", "NamedTuple", "Enum", "Error")) for base in bases)


def alternatives(annotation: ast.expr | None) -> set[str]:
    """Return the types that an annotation names one beside the other: {"Client", "None"}."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return alternatives(ast.parse(annotation.value, mode="eval").body)
    if isinstance(annotation, ast.BinOp) and isinstance(annotation.op, ast.BitOr):
        return alternatives(annotation.left) | alternatives(annotation.right)
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "Optional":
        return alternatives(annotation.slice) | {"None"}
    if isinstance(annotation, ast.Subscript):
        return {ast.unparse(annotation.value)}
    return {ast.unparse(annotation)} if annotation is not None else set()


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, FUNCTIONS))


def callables(tree: ast.AST) -> set[str]:
    """Return the attributes that hold a callable, by their annotation or that of their parameter."""
    found = set()
    for function in functions(tree):
        arguments = [*function.args.args, *function.args.kwonlyargs]
        given = {one.arg for one in arguments if "Callable" in alternatives(one.annotation)}
        for node in ast.walk(function):
            match node:
                case ast.AnnAssign(target=ast.Attribute(attr=name), annotation=said):
                    found |= {name} if "Callable" in alternatives(said) else set()
                case ast.Assign(targets=[ast.Attribute(attr=name)], value=ast.Name(id=value)):
                    found |= {name} if value in given else set()
    return found


def late_callbacks(made: ast.ClassDef, held: set[str]) -> Iterator[int]:
    """Yield the lines of a class where a callable is put into an object that is there already.

    `held`: attributes of any class that hold callables.
    """
    own, methods = callables(made), {function.name for function in functions(made)}
    for function in functions(made):
        for node in ast.walk(function):
            match node:
                case ast.Assign(targets=[ast.Attribute(value=base, attr=name)], value=value):
                    is_own = ast.unparse(base) == "self"
                    if is_own and function.name == "__init__":
                        continue
                    is_method = isinstance(value, ast.Attribute) and ast.unparse(value.value) == "self"
                    is_method = is_method and value.attr in methods
                    if name in (own if is_own else held) or isinstance(value, ast.Lambda) or is_method:
                        yield node.lineno


def optional_parts(made: ast.ClassDef, parts: set[str]) -> Iterator[int]:
    """Yield the lines of a part where an attribute of it may be another part or None."""
    for function in functions(made):
        arguments = [*function.args.args, *function.args.kwonlyargs]
        optional = {
            one.arg
            for one in arguments
            if "None" in (said := alternatives(one.annotation)) and said & (parts | {"Callable"})
        }
        for node in ast.walk(function):
            match node:
                case ast.AnnAssign(target=ast.Attribute(), annotation=annotation):
                    said = alternatives(annotation)
                    if "None" in said and said & (parts | {"Callable"}):
                        yield node.lineno
                case ast.Assign(targets=[ast.Attribute()], value=ast.Name(id=name)) if name in optional:
                    yield node.lineno
                case ast.Assign(targets=[ast.Attribute()], value=ast.IfExp(orelse=ast.Constant(value=None))):
                    if any(called in parts for called in calls(node.value)):
                        yield node.lineno


def calls(tree: ast.AST) -> set[str]:
    """Return the names of functions and classes that are called."""
    called = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return {func.id for func in called if isinstance(func, ast.Name)} | {
        func.attr for func in called if isinstance(func, ast.Attribute)
    }


def part_names(all_trees: Mapping[str, ast.Module]) -> set[str]:
    """Return the classes that are parts of a program: no data, protocol or error."""
    return {made.name for tree in all_trees.values() for made in classes(tree) if not is_value(made)}


def makers_of_optional(tree: ast.Module, parts: set[str]) -> Iterator[int]:
    """Yield the lines of functions that return a part or None."""
    for function in functions(tree):
        returned = alternatives(function.returns)
        if "None" in returned and returned & parts:
            yield function.lineno


def callbacks_in(all_trees: Mapping[str, ast.Module]) -> list[str]:
    held = set().union(*map(callables, all_trees.values()))
    return [
        f"{path}:{line}"
        for path, tree in all_trees.items()
        for made in classes(tree)
        for line in late_callbacks(made, held)
    ]


def optional_in(all_trees: Mapping[str, ast.Module]) -> list[str]:
    parts = part_names(all_trees)
    return [
        f"{path}:{line}"
        for path, tree in all_trees.items()
        for made in classes(tree)
        if made.name in parts
        for line in optional_parts(made, parts)
    ]


def test_no_callback_is_put_into_an_object_that_is_there_already() -> None:
    assert not callbacks_in(trees()), "give it to the constructor"


def test_no_part_of_the_daemon_is_optional() -> None:
    found = trees()
    assert not optional_in(found), "put an object there that does nothing"
    makers = list(makers_of_optional(found["hypervisor/daemon.py"], part_names(found)))
    assert not makers, "return an object that does nothing"


WRONG_CALLBACKS = [
    "self.node.wake = self.server.wake",
    "node.wake = lambda _: None",
    "node.place = self.start",
    "self.wake = node.wake",
]
WRONG_PARTS = [
    "self.server: Server | None = None",
    "self.server: Optional[Server] = None",
    "self.server = Server() if settings else None",
    "self.server = given",
    "self.wake: Callable[[int], None] | None = None",
]
SOURCE = """
class Node:
    def __init__(self, wake: Callable[[int], None]) -> None:
        self.wake = wake

class Server:
    def wake(self, number: int) -> None: ...

class Daemon:
    def __init__(self, node: Node, server: Server, given: Server | None, number: int | None) -> None:
        self.node = node
        self.wake: Callable[[int], None] = server.wake
        self.number: int | None = number
        {first}
    def start(self, node: Node) -> None:
        self.number = None
        {later}
"""


def sample(*, first: str = "pass", later: str = "pass") -> dict[str, ast.Module]:
    return {"sample": ast.parse(SOURCE.format(first=first, later=later))}


def test_values_may_be_none_and_constructors_may_take_callables() -> None:
    assert callbacks_in(sample()) == optional_in(sample()) == []


@pytest.mark.parametrize("line", WRONG_CALLBACKS)
def test_a_late_callback_is_found(line: str) -> None:
    assert len(callbacks_in(sample(later=line))) == 1


def test_a_function_that_makes_an_optional_part_is_found() -> None:
    made = ast.parse(SOURCE.format(first="pass", later="pass") + "def server_of() -> Server | None: ...")
    assert len(list(makers_of_optional(made, part_names({"sample": made})))) == 1


@pytest.mark.parametrize("line", WRONG_PARTS)
def test_an_optional_part_is_found(line: str) -> None:
    assert len(optional_in(sample(first=line))) == 1
