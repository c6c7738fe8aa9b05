"""Names become objects here: one module for each kind of thing that has a name.

``plugins`` finds what other packages register by entry points; every other module lists what comes
with duetune and makes it. What runs jobs is put together in ``duetune.wiring``.
"""
