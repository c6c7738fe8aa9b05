"""Everything that can be asked about configurations, behind one port: see ``source``."""
