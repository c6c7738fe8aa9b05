"""Measures configurations on the GPU of this machine.

``campaign`` chooses what to run and stores the results. The worker that runs the configurations is
a process of its own, ``duetune.training.profiler``, because it runs steps of our trainer.
"""
