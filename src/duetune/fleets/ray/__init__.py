"""Nodes on a Ray cluster: ``ray_driver`` is what ``engine_fleet`` drives."""
