"""Configuration knowledge: which configurations fit, how fast they are, and how sure that is.

- ``facts``: models, GPUs and prices, known without any measurement.
- ``configurations``: one configuration, tables of them, and the spaces they come from.
- ``arithmetic``: memory and step time by formulas; ``model``: the same fitted to measured runs.
- ``sources``: everything that answers questions, behind one port.
- ``advisor``: answers "does it fit" and "which configuration" for users.
- ``measure``: runs configurations on a GPU and records the result.
"""
