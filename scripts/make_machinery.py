"""Write the table of docs/architecture.md of all caches, batchers, pools and child processes, from the code.

python scripts/make_machinery.py [--check | --count] [FOLDER]

`--count` prints how many there are of each kind in FOLDER, those that are made without the classes of
`tiltyard.runtime` included, with their places.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from made_pages import write_part

HOME = Path(__file__).resolve().parent.parent
SOURCE = HOME / "src/tiltyard"
TARGET = HOME / "docs/architecture.md"
KINDS = {
    "cache": "Caches",
    "memo": "Results of functions",
    "batcher": "Batchers and queues",
    "pool": "Pools of threads",
    "child": "Child processes",
}

MAKERS = {
    "Cache": "cache",
    "CountedCache": "cache",
    "cached": "memo",
    "WorkQueue": "batcher",
    "Batcher": "batcher",
    "Pool": "pool",
    "ThreadPool": "pool",
    "FairPool": "pool",
    "ChildProcess": "child",
    "CountedProcess": "child",
    "start_python": "child",
}
"""What makes a counted piece, or is the base of the class that does. Its first arguments are a name and a purpose."""

CLASSES = frozenset(f"runtime/{name}.py" for name in ("cache", "pool", "batcher", "child_process", "machinery"))
"""Where the classes are."""
RAW = {
    "lru_cache": "memo",
    **dict.fromkeys(("OrderedDict", "WeakKeyDictionary", "WeakValueDictionary", "TTLCache", "LRUCache"), "cache"),
    **dict.fromkeys(("Queue", "SimpleQueue", "LifoQueue", "PriorityQueue"), "batcher"),
    **dict.fromkeys(("ThreadPoolExecutor", "ProcessPoolExecutor"), "pool"),
    **dict.fromkeys(("Popen", "check_output", "check_call", "posix_spawn", "fork", "Process"), "child"),
}


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of machinery, where it is made; one that is not counted has no name."""

    kind: str
    place: str
    name: str = ""
    purpose: str = ""
    bound: str = ""
    invalidated_by: str = ""


def find_pieces(source: Path) -> Iterator[Piece]:
    """Yield what the modules below a folder make, in their order."""
    for file in sorted(source.rglob("*.py")):
        tree = ast.parse(file.read_text("utf-8"))
        yield from _Finder(file.relative_to(source).as_posix(), tree).find()


class _Finder:
    """Finds the machinery of one module."""

    def __init__(self, module: str, tree: ast.Module) -> None:
        self._module = module
        self._tree = tree
        self._constants = {
            target.id: node.value
            for node in tree.body
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
            if isinstance(target, ast.Name)
        }

    def find(self) -> Iterator[Piece]:
        yield from self._visit(self._tree, None)

    def _visit(self, node: ast.AST, counted: str | None) -> Iterator[Piece]:
        """Yield what is below a node, in a class that is `counted` as a kind itself, or in none."""
        for child in ast.iter_child_nodes(node):
            inner = counted
            if isinstance(child, ast.ClassDef):
                inner = next((MAKERS[name] for base in child.bases if (name := _name(base)) in MAKERS), None)
            elif isinstance(child, ast.Call):
                yield from self._of_call(child, _name(child.func), counted)
            elif isinstance(child, ast.FunctionDef):
                yield from self._of_decorators(child)
            if counted is None and self._module not in CLASSES:
                yield from self._of_statement(child)
            yield from self._visit(child, inner)

    def _of_statement(self, node: ast.AST) -> Iterator[Piece]:
        if isinstance(node, ast.If) and _empties_when_full(node):
            yield Piece("cache", self._place(node))
        elif isinstance(node, ast.Assign | ast.AnnAssign) and _is_queue(node):
            yield Piece("batcher", self._place(node))

    def _of_call(self, node: ast.Call, name: str, counted: str | None) -> Iterator[Piece]:
        if name == "__init__" and isinstance(node.func, ast.Attribute) and counted is not None:
            if _texts(node) and _name(getattr(node.func.value, "func", node.func.value)) == "super":
                yield self._counted(counted, node)
        elif name in MAKERS:
            if _texts(node):
                yield self._counted(MAKERS[name], node)
        elif counted is not None or self._module in CLASSES:
            return
        elif name in RAW or (name == "run" and _name(getattr(node.func, "value", node)) == "subprocess"):
            yield Piece(RAW.get(name, "child"), self._place(node))

    def _of_decorators(self, node: ast.FunctionDef) -> Iterator[Piece]:
        """Yield caches of a function; one without arguments is a constant that is computed late."""
        for each in node.decorator_list:
            is_method = bool(node.args.args) and node.args.args[0].arg in ("self", "cls")
            if self._module in CLASSES:
                return
            if _name(each) == "cache" and (node.args.args or node.args.kwonlyargs) and not is_method:
                yield Piece("memo", self._place(each))

    def _counted(self, kind: str, call: ast.Call) -> Piece:
        name, purpose = _texts(call)
        given = {word.arg: self._text(word.value) for word in call.keywords}
        bounds = [given[word] + unit for word, unit in _BOUNDS.items() if word in given]
        if kind == "pool":
            bounds = [f"{self._text(each)} threads" for each in call.args[2:3]] or bounds
        bound = ", ".join([*bounds, *([f"for {given['seconds']} s"] if "seconds" in given else [])])
        return Piece(kind, self._place(call), name, purpose, bound, given.get("invalidated_by", ""))

    def _text(self, node: ast.expr) -> str:
        """Return an argument as a reader wants it: the value of a constant of the module, or the expression."""
        if isinstance(node, ast.Name) and node.id in self._constants:
            node = self._constants[node.id]
        try:
            value = _compute(node)
        except ValueError:
            return f"`{ast.unparse(node)}`".replace("self._", "").replace("self.", "")
        return value if isinstance(value, str) else f"{value:,}"

    def _place(self, node: ast.expr | ast.stmt) -> str:
        return f"{self._module}:{node.lineno}"


_BOUNDS = {"max_entries": " entries", "max_bytes": " bytes", "threads": " threads", "max_waiting": " waiting"}


def _compute(node: ast.expr) -> str | int | float:
    """Return the value of a literal, or of an expression of numbers. Raises ValueError for others."""
    if isinstance(node, ast.BinOp):
        left, right = _compute(node.left), _compute(node.right)
        if isinstance(left, int) and isinstance(right, int):
            operators = {ast.LShift: left << right, ast.Mult: left * right, ast.Add: left + right}
            if type(node.op) in operators:
                return operators[type(node.op)]
        raise ValueError
    value = ast.literal_eval(node)
    if isinstance(value, str | int | float):
        return value
    raise ValueError


def _name(node: ast.AST) -> str:
    """Return the last word of a name: of `subprocess.Popen`, and of `Cache[str, int]`."""
    if isinstance(node, ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _texts(call: ast.Call) -> tuple[str, str] | None:
    """Return the name and the purpose among the arguments of a call; None where those are no texts."""
    texts = [each.value for each in call.args[:2] if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    return (texts[0], texts[1]) if len(texts) == 2 else None  # both


def _is_queue(node: ast.Assign | ast.AnnAssign) -> bool:
    """Whether an attribute of an object is a queue without a bound of its own."""
    target = node.targets[0] if isinstance(node, ast.Assign) else node.target
    value = node.value
    if not (isinstance(target, ast.Attribute) and isinstance(value, ast.Call) and _name(value.func) == "deque"):
        return False
    return all(word.arg != "maxlen" for word in value.keywords)


def _empties_when_full(node: ast.If) -> bool:
    """Whether a statement empties a collection, or drops a part of it, where it has too many entries."""
    test = node.test
    if not (isinstance(test, ast.Compare) and isinstance(test.left, ast.Call) and _name(test.left.func) == "len"):
        return False
    if not isinstance(test.ops[0], ast.Gt | ast.GtE):
        return False
    what = ast.unparse(test.left.args[0])
    body = "\n".join(map(ast.unparse, node.body))
    return any(f"{what}{change}" in body for change in (".clear()", ".popitem(", " = {}"))


def make_tables(pieces: list[Piece]) -> str:
    """Return the tables, one of each kind."""
    parts = []
    for kind, title in KINDS.items():
        known = {piece.name: piece for piece in reversed(pieces) if piece.kind == kind and piece.name}
        parts.append(f"**{title}: {len(known)}**\n")
        is_cache, is_bounded = kind == "cache", kind in ("cache", "memo", "pool")
        columns = ["name", "what for", *["bound"] * is_bounded, *["invalidated by"] * is_cache, "made in"]
        parts.append(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
        for name in sorted(known):
            piece = known[name]
            more = [*[piece.bound] * is_bounded, *[piece.invalidated_by] * is_cache]
            place = piece.place.partition(":")[0]
            parts.append(f"| {' | '.join([name, piece.purpose, *more, f'`{place}`'])} |")
        parts.append("")
    return "\n".join(parts)


def count(source: Path) -> Iterator[str]:
    """Yield the number of each kind, and where those are that are not counted."""
    pieces = list(find_pieces(source))
    for kind, title in KINDS.items():
        names = {piece.name for piece in pieces if piece.kind == kind and piece.name}
        raw = [piece.place for piece in pieces if piece.kind == kind and not piece.name]
        yield f"{title}: {len(names)} counted, {len(raw)} not"
        yield from (f"  {place}" for place in raw)


def main(arguments: list[str]) -> int:
    """Write the tables, or check that they are current. Return the status."""
    paths = [Path(each) for each in arguments if not each.startswith("--")]
    source = paths[0] if paths else SOURCE
    if "--count" in arguments:
        print("\n".join(count(source)))
        return 0
    return write_part(TARGET, make_tables(list(find_pieces(source))), "machinery", check="--check" in arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
