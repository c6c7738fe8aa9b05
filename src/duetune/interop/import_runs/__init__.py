"""History from the tables and run folders of other tools."""
