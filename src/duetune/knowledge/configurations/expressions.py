"""Boolean expressions over the fields of configurations, as a user writes them in a file.

    batch_size % num_gpus == 0
    num_gpus == 1 or sharding in ("fsdp", "ddp")

The grammar is Python's. Only arithmetic, comparisons, ``and``, ``or``, ``not`` and ``in`` are
allowed. An expression is parsed once and evaluated on whole columns.
"""

from __future__ import annotations

import ast
import functools
import math
import operator
import textwrap
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from duetune.errors import InvalidInput
from duetune.knowledge.configurations.configuration import CATEGORIES, ENUMERATED, FIELDS
from duetune.knowledge.configurations.configuration_table import facts_or_usual
from duetune.knowledge.facts.gpus import gpu_named

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from duetune.knowledge.configurations.configuration import Configurations

    Column = NDArray[np.float64] | NDArray[np.bool_]
    Evaluation = Callable[[Configurations], Column]
    Arithmetic = Callable[[Column, Column], Column]

LONGEST = 1000
"""Maximum number of characters: longer texts could exhaust the parser's stack."""


def _experts(model: str) -> float:
    """Return the number of experts, or 0 for a dense or unknown model: every degree divides 0."""
    experts = facts_or_usual(model).experts
    return float(experts) if experts > 1 else 0.0


def _gpu_memory_gb(configurations: Configurations) -> NDArray[np.float64]:
    def sold(word: str) -> float:
        gpu = gpu_named(word)
        return math.nan if gpu is None else gpu.memory_gb

    cap = configurations.number("memory_cap_gb")
    whole = configurations.gather("gpu_model", sold)
    return np.where(cap > 0, np.fmin(cap, whole), whole)


DERIVED: dict[str, Callable[[Configurations], NDArray[np.float64]]] = {
    "experts": lambda each: each.gather("model", _experts),
    "parameters_b": lambda each: each.gather(
        "model", lambda word: facts_or_usual(word).parameters / 1e9
    ),
    "per_gpu_batch": lambda each: each.per_gpu_batch,
    "per_gpu_tokens": lambda each: each.per_gpu_tokens,
    "total_tokens": lambda each: each.per_gpu_tokens * each.number("num_gpus"),
    "step_tokens": lambda each: (
        each.per_gpu_tokens * each.number("num_gpus") * each.number("grad_accum")
    ),
    "gpu_memory_gb": _gpu_memory_gb,
}
"""Names that are not fields but are computed from them. ``total_tokens`` counts one micro-step over
all GPUs, ``step_tokens`` one optimiser step. ``gpu_memory_gb`` is the size as sold, or the cap if
that is less.
"""

_TOKENS = ("batch_size", "num_gpus", "tokens_per_sample", "tokens_per_microbatch")
_DEPENDS = {
    "experts": ("model",),
    "parameters_b": ("model",),
    "per_gpu_batch": ("batch_size", "num_gpus"),
    "per_gpu_tokens": _TOKENS,
    "total_tokens": _TOKENS,
    "step_tokens": (*_TOKENS, "grad_accum"),
    "gpu_memory_gb": ("gpu_model", "memory_cap_gb"),
}
_ARITHMETIC: dict[type[ast.operator], Arithmetic] = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
    ast.Div: np.divide,
    ast.FloorDiv: np.floor_divide,
    ast.Mod: np.mod,
}
_COMPARISONS: dict[type[ast.cmpop], Arithmetic] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


class Expression(NamedTuple):
    """A parsed expression; ``fields`` are the fields it depends on."""

    text: str
    fields: frozenset[str]
    evaluation: Evaluation

    def holds(self, configurations: Configurations) -> NDArray[np.bool_]:
        """Return a mask of the configurations for which the expression is true.

        Both sides of ``or`` are evaluated, so a division by zero on one side is not an error.
        """
        with np.errstate(all="ignore"):
            found = self.evaluation(configurations)
        return np.broadcast_to(np.asarray(found, np.bool_), (len(configurations),))


@functools.lru_cache(maxsize=1024)
def parse_expression(text: str) -> Expression:
    """Return the parsed expression; results are cached.

    Raises ``InvalidInput`` for anything but a boolean expression over known names.
    """
    if len(text) > LONGEST:
        raise InvalidInput("constraint", text, f"at most {LONGEST} characters")
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise InvalidInput("constraint", text, "a boolean expression over fields") from None
    try:
        evaluation = _Reader(text).truth(tree.body)
    except RecursionError:
        raise InvalidInput("constraint", text, "an expression less deeply nested") from None
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    fields = {field for name in names for field in _DEPENDS.get(name, (name,))}
    return Expression(text, frozenset(fields), evaluation)


class _Reader:
    """Turns a syntax tree into functions over columns, or refuses it with the part that is
    wrong.
    """

    def __init__(self, text: str) -> None:
        self.text = text

    def wrong(self, node: ast.AST, allowed: str) -> InvalidInput:
        """Return the error for a part of the expression."""
        part = textwrap.shorten(ast.unparse(node), 60, placeholder="...")
        where = "" if part == self.text.strip() else f" (at {part})"
        return InvalidInput("constraint", self.text, f"{allowed}{where}")

    def truth(self, node: ast.expr) -> Evaluation:
        """Return a function that evaluates a node to true or false for each row."""
        match node:
            case ast.BoolOp():
                parts = [self.truth(value) for value in node.values]
                both = np.logical_and if isinstance(node.op, ast.And) else np.logical_or
                return lambda each: functools.reduce(both, [part(each) for part in parts])
            case ast.UnaryOp(op=ast.Not()):
                inner = self.truth(node.operand)
                return lambda each: np.logical_not(inner(each))
            case ast.Compare():
                return self.comparison(node)
            case ast.Constant(value=bool()) | ast.Name():
                number = self.number(node)
                return lambda each: number(each) > 0
            case _:
                raise self.wrong(node, "something that is true or false")

    def comparison(self, node: ast.Compare) -> Evaluation:
        """Return a function for a chain of comparisons such as ``1 < num_gpus <= 8``."""
        sides = [node.left, *node.comparators]
        steps = [
            self.compared(node, left, sign, right)
            for left, sign, right in zip(sides[:-1], node.ops, sides[1:], strict=True)
        ]
        return lambda each: functools.reduce(np.logical_and, [step(each) for step in steps])

    def compared(
        self, node: ast.Compare, left: ast.expr, sign: ast.cmpop, right: ast.expr
    ) -> Evaluation:
        """Return a function for one comparison of the chain."""
        if self.is_words(right) and isinstance(sign, ast.Eq | ast.NotEq):
            left, right = right, left
        if self.is_words(left):
            return self.of_words(node, left, sign, right)
        if isinstance(sign, ast.In | ast.NotIn):
            if not isinstance(right, ast.Tuple | ast.List):
                raise self.wrong(node, "a list behind in: (1, 2)")
            value, among = self.number(left), [self.number(item) for item in right.elts]
            wanted = isinstance(sign, ast.In)
            return lambda each: (
                np.any([value(each) == item(each) for item in among], axis=0) == wanted
                if among
                else np.full(len(each), not wanted)
            )
        if type(sign) not in _COMPARISONS:
            raise self.wrong(node, "one of == != < <= > >= in, not in")
        compare, first, second = _COMPARISONS[type(sign)], self.number(left), self.number(right)
        return lambda each: compare(first(each), second(each))

    @staticmethod
    def is_words(node: ast.expr) -> bool:
        """Return whether a node is the name of a word field."""
        return isinstance(node, ast.Name) and node.id in CATEGORIES

    def of_words(
        self, node: ast.Compare, left: ast.expr, sign: ast.cmpop, right: ast.expr
    ) -> Evaluation:
        """Return a function that compares a word field with quoted words."""
        field = left.id if isinstance(left, ast.Name) else ""
        several = isinstance(sign, ast.In | ast.NotIn)
        if not several and not isinstance(sign, ast.Eq | ast.NotEq):
            raise self.wrong(node, f"one of == != in, not in, since {field} is a word")
        if several and not isinstance(right, ast.Tuple | ast.List):
            raise self.wrong(node, f'a list behind in: {field} in ("a", "b")')
        items = right.elts if isinstance(right, ast.Tuple | ast.List) else [right]
        words = [item.value for item in items if isinstance(item, ast.Constant)]
        if len(words) != len(items) or not all(isinstance(word, str) for word in words):
            raise self.wrong(node, f"words in quotes to compare {field} with")
        known = ENUMERATED.get(field)
        for word in words:
            if known is not None and word not in known:
                raise self.wrong(node, f"{field} to be one of {', '.join(sorted(known))}")
        wanted = isinstance(sign, ast.Eq | ast.In)
        chosen = tuple(str(word) for word in words)
        return lambda each: each.is_(field, *chosen) == wanted

    def number(self, node: ast.expr) -> Evaluation:
        """Return a function that evaluates a node to a number for each row."""
        match node:
            case ast.Constant(value=bool() | int() | float()):
                return self.constant(node)
            case ast.Name(id=name) if name in DERIVED:
                return DERIVED[name]
            case ast.Name(id=name) if name in FIELDS and name not in CATEGORIES:
                return lambda each: each.number(name)
            case ast.Name(id=name) if name in CATEGORIES:
                raise self.wrong(node, "a number here, not a word")
            case ast.Name():
                raise self.wrong(node, f"one of {', '.join((*FIELDS, *DERIVED))}")
            case ast.UnaryOp(op=ast.USub()):
                inner = self.number(node.operand)
                return lambda each: np.negative(inner(each))
            case ast.BinOp() if type(node.op) in _ARITHMETIC:
                compute = _ARITHMETIC[type(node.op)]
                first, second = self.number(node.left), self.number(node.right)
                return lambda each: compute(first(each), second(each))
            case ast.Compare() | ast.BoolOp() | ast.UnaryOp(op=ast.Not()):
                truth = self.truth(node)  # (num_gpus == 1) == (sharding == "none")
                return lambda each: np.asarray(truth(each), np.float64)
            case _:
                raise self.wrong(node, "fields, numbers, + - * / // %, comparisons, and, or, not")

    def constant(self, node: ast.Constant) -> Evaluation:
        """Return a function for a number that is written in the expression."""
        try:
            value = np.float64(node.value)  # type: ignore[arg-type]
        except OverflowError:
            value = np.float64(np.inf)
        if not np.isfinite(value):
            raise self.wrong(node, "finite numbers")
        return lambda each: np.full(len(each), value)
