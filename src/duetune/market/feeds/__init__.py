"""Live market feeds: AWS prices, price lists, recorded traces, and the recorder that writes them.

``duetune.registry.feeds`` makes them from their names.
"""
