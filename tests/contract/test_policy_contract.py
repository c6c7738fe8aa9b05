from __future__ import annotations

import contextlib
import itertools

import duetune.policies
from duetune.errors import InvalidInput
from duetune.policies.baselines import MaximalSpot
from duetune.policies.compiled_policy import CompiledPolicy
from duetune.policies.guard import CompiledGuard, PolicyGuard
from duetune.testing import Idle, PolicyContract, Restless
from support.discovery import classes_with
from support.more import MORE

ABSTRACT = {CompiledPolicy}
IMPLEMENTATIONS = [
    each for each in classes_with(duetune.policies, "decide") if each not in ABSTRACT
]
WRAPPED = {CompiledGuard: [MaximalSpot()], PolicyGuard: [Idle(), Restless(3)]}


def variants(kind: type) -> list[object]:
    """With each option changed alone and all together; `make test-more` takes every combination."""
    fields = kind.__struct_fields__
    defaults = dict(zip(reversed(fields), reversed(kind.__struct_defaults__), strict=False))
    options = {name: [False, True] for name, value in defaults.items() if isinstance(value, bool)}
    if "policy" in fields:
        options["policy"] = WRAPPED[kind]
    if "commitment" in fields:
        options["commitment"] = [1, 3]
    made = []
    for chosen in itertools.product(*options.values()):
        changed = sum(
            value != values[0] for value, values in zip(chosen, options.values(), strict=True)
        )
        if not MORE and 1 < changed < len(options):
            continue
        with contextlib.suppress(InvalidInput):  # some options exclude each other
            made.append(kind(**dict(zip(options, chosen, strict=True))))
    return made


def test_discovery_finds_the_policies_of_the_paper():
    assert {"Ahap", "Ahanp", "UniformProgress", "MaximalSpot", "OnDemandOnly"} <= {
        each.__name__ for each in IMPLEMENTATIONS
    }


for _kind in IMPLEMENTATIONS:
    for _number, _policy in enumerate(variants(_kind)):
        _name = f"Test{_kind.__name__}{_number}"
        globals()[_name] = type(
            _name, (PolicyContract,), {"make": lambda _self, policy=_policy: policy}
        )


class TestIdle(PolicyContract):
    def make(self):
        return Idle()


class TestRestless(PolicyContract):
    def make(self):
        return Restless(1)
