"""Whatever the values and constraints, a space has exactly the points that satisfy them."""

from __future__ import annotations

import ast
import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from duetune.knowledge.configurations.configuration import Configuration, Configurations
from duetune.knowledge.configurations.configuration_rules import Constraint, broken
from duetune.knowledge.configurations.expressions import parse_expression
from duetune.knowledge.configurations.space import Domain, Space
from duetune.knowledge.configurations.space_sampling import sample

NUMBERS = ("num_gpus", "batch_size", "tokens_per_sample", "num_nodes", "grad_accum", "fast_moe")
values = st.lists(st.integers(1, 12), min_size=1, max_size=3, unique=True).map(tuple)


@st.composite
def numbers(draw, depth=2):
    if depth == 0 or draw(st.booleans()):
        return draw(st.one_of(st.sampled_from(NUMBERS), st.integers(0, 20).map(str)))
    sign = draw(st.sampled_from(["+", "-", "*", "//", "%", "/"]))
    return f"({draw(numbers(depth - 1))} {sign} {draw(numbers(depth - 1))})"


@st.composite
def truths(draw, depth=2):
    if depth == 0 or draw(st.booleans()):
        if draw(st.booleans()):
            words = draw(st.lists(st.sampled_from(["full", "lora", "qlora"]), min_size=1))
            among = "".join(f'"{word}", ' for word in words)
            return f"method {draw(st.sampled_from(['in', 'not in']))} ({among})"
        sign = draw(st.sampled_from(["==", "!=", "<", "<=", ">", ">="]))
        return f"{draw(numbers())} {sign} {draw(numbers())}"
    if draw(st.booleans()):
        return f"not ({draw(truths(depth - 1))})"
    word = draw(st.sampled_from(["and", "or"]))
    return f"({draw(truths(depth - 1))}) {word} ({draw(truths(depth - 1))})"


@st.composite
def spaces(draw):
    domains = {field: Domain(draw(values)) for field in draw(st.sets(st.sampled_from(NUMBERS)))}
    domains["model"] = Domain(draw(st.sampled_from([("a",), ("a", "b")])))
    domains["gpu_model"] = Domain(("L40S",))
    domains["method"] = Domain(draw(st.sampled_from([("full",), ("lora", "full")])))
    constraints = draw(st.lists(truths(), max_size=3))
    return Space(domains, tuple(Constraint(text) for text in constraints))


rows = st.builds(
    Configuration,
    model=st.sampled_from(["llama3.1-8b", "mixtral-8x7b"]),
    gpu_model=st.sampled_from(["L40S", "A100-80GB"]),
    method=st.sampled_from(["full", "lora", "qlora"]),
    **{field: st.integers(1, 12) for field in NUMBERS if field != "fast_moe"},
    fast_moe=st.integers(0, 4),
    sharding=st.sampled_from(["none", "fsdp"]),
)


@given(truths(depth=3), st.lists(rows, min_size=1, max_size=8))
def test_an_expression_on_columns_is_python_on_each_row(text, given_rows):
    columns = parse_expression(text).holds(Configurations.of(given_rows)).tolist()
    for row, found in zip(given_rows, columns, strict=True):
        names = {field: getattr(row, field) for field in (*NUMBERS, "method")}
        # Columns evaluate both sides of an or; Python may not come to the second.
        if not _divides_by_zero(text, names):
            assert found == eval(text, {"__builtins__": {}}, names)  # noqa: S307 - made up above


def _divides_by_zero(text, names):
    """Whether any part of it would, be it reached or not."""
    for node in ast.walk(ast.parse(text, mode="eval")):
        if isinstance(node, ast.BinOp):
            try:
                eval(ast.unparse(node), {"__builtins__": {}}, names)  # noqa: S307
            except ZeroDivisionError:
                return True
    return False


@given(st.lists(rows, min_size=1, max_size=10))
def test_rules_of_many_are_those_of_each(given_rows):
    together = broken(Configurations.of(given_rows)).tolist()
    assert together == [int(broken(Configurations.of([row]))[0]) for row in given_rows]


@given(spaces(), st.integers(1, 50))
def test_enumeration_is_the_product_that_satisfies_the_constraints(space, chunk):
    fields = list(space.domains)
    every = [
        Configuration(**dict(zip(fields, chosen, strict=True)))
        for chosen in itertools.product(*(space.domains[field].values for field in fields))
    ]
    kept = {row.key for row in every if space.contains(row)}
    points = [row for part in space.enumerate(chunk) for row in part]
    assert {row.key for row in points} == kept
    assert len(points) == len(kept) == space.cardinality
    assert len(every) == space.combinations


@given(spaces(), st.integers(0, 12), st.integers(0, 5), st.booleans())
def test_a_sample_is_some_of_the_allowed_points_each_once(space, count, seed, spread):
    points = space.points()
    allowed = {row.key for row in points.take(space.allowed(points))}
    count = min(count, len(allowed))
    method = "latin-hypercube" if spread else "random"
    drawn = [row.key for row in sample(space, count, np.random.default_rng(seed), method)]
    assert len(set(drawn)) == len(drawn) == count
    assert set(drawn) <= allowed


@given(spaces(), st.sampled_from(NUMBERS), st.integers(1, 12))
def test_a_given_field_has_that_value_and_leaves_the_others_alone(space, field, value):
    narrowed = space.given({field: value})
    assert {getattr(row, field) for row in narrowed.points()} <= {value}
    assert field not in narrowed.free
    assert all(narrowed.values[other] == space.values[other] for other in NUMBERS if other != field)
