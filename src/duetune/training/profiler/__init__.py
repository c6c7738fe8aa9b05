"""The profiler's worker: it times steps of our own trainer, one configuration after the other.

``knowledge.measure`` chooses the configurations and keeps the results.
"""
