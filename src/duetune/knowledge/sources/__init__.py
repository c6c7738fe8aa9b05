"""Everything that answers questions about configurations, behind the port in
``knowledge_source``.
"""
