"""Measures configurations on the GPU of this machine.

``campaign`` chooses what to run and keeps the results; ``worker`` runs it in a process of its own
and needs nothing but torch, transformers and PEFT. Nothing is imported here for that reason.
"""
