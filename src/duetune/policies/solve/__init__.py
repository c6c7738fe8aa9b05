"""Exact optima and the value tables that policies plan with.

``dynamic`` and ``milp`` solve a market that is known; ``stochastic`` plans against a Markov chain.
No rule of a policy lives here.
"""
