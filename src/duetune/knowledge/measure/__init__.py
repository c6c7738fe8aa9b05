"""Measures configurations on the GPU of this machine.

``campaign`` chooses what to run and stores the results. ``measuring_worker`` runs the
configurations in a process of its own and needs only torch, transformers and PEFT, so nothing is
imported here.
"""
