"""Residency: typed policy documents from Git decide where a tenant's context may live.

Documents are read with the line and column of every error (``source``, ``document``), their
conditions are bounded (``condition``), and a whole revision is compiled to a table that a placement
looks up (``compile``). Nothing in these does I/O; ``sync`` fetches revisions and ``bundle`` keeps
the last good one.
"""
