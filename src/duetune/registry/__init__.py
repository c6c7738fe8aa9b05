"""Turns names into objects: one module for each kind of thing that has a name.

``plugins`` finds what other packages register by entry points. Every other module lists and makes
what comes with duetune. ``duetune.wiring`` connects the objects to run jobs.
"""
