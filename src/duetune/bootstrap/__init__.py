"""The composition root: names become objects here, and nowhere else.

``names`` has the parts that decide; ``live`` puts together what runs jobs.
"""

from duetune.bootstrap.names import (
    GROUPS,
    POLICIES,
    POLICY_GROUP,
    SELECTORS,
    SYNTHETIC_SLOTS,
    Listed,
    forecast_named,
    market_named,
    markets_from_file,
    markets_listed,
    policies_listed,
    policies_named,
    policy_named,
    selector_named,
)

__all__ = [
    "GROUPS",
    "POLICIES",
    "POLICY_GROUP",
    "SELECTORS",
    "SYNTHETIC_SLOTS",
    "Listed",
    "forecast_named",
    "market_named",
    "markets_from_file",
    "markets_listed",
    "policies_listed",
    "policies_named",
    "policy_named",
    "selector_named",
]
