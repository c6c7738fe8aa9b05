"""Writes support.jsonl: invented customer service conversations of a shop, always the same."""

from __future__ import annotations

import json
import random
from pathlib import Path

ROWS = 640
ITEMS = ("kettle", "desk lamp", "rain jacket", "keyboard", "backpack", "coffee grinder", "tent")
COLOURS = ("blue", "green", "black", "red", "white")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday")
CASES = (
    (
        "Where is my order {number}? I bought a {colour} {item}.",
        "Your order {number} with the {colour} {item} is on its way and will arrive on {day}.",
    ),
    (
        "The {item} in order {number} arrived broken.",
        "I am sorry that the {item} arrived broken. A new one for order {number} leaves on {day}.",
    ),
    (
        "Can I return the {colour} {item}?",
        "Yes. You can return the {colour} {item} within 30 days; we collect it on {day}.",
    ),
    (
        "Please cancel order {number}.",
        "Order {number} is cancelled. You will have your money back by {day}.",
    ),
    (
        "Do you have the {item} in {colour}?",
        "Yes, we have the {item} in {colour}. Order today and it arrives on {day}.",
    ),
)


def rows(*, seed: int, count: int) -> list[str]:
    """Return ``count`` conversations as JSON lines."""
    draw = random.Random(seed)  # noqa: S311 - no secret
    lines = []
    for _ in range(count):
        prompt, completion = draw.choice(CASES)
        words = {
            "number": draw.randint(1000, 9999),
            "item": draw.choice(ITEMS),
            "colour": draw.choice(COLOURS),
            "day": draw.choice(DAYS),
        }
        row = {
            "prompt": f"Customer: {prompt.format(**words)}\nAgent:",
            "completion": f" {completion.format(**words)}",
        }
        lines.append(json.dumps(row))
    return lines


def main() -> None:
    text = "\n".join(rows(seed=7, count=ROWS)) + "\n"
    Path(__file__).with_name("support.jsonl").write_text(text, "utf-8")


if __name__ == "__main__":
    main()
