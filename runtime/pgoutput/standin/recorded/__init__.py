"""Recordings as what is served: read once for a plan, and once for each connection."""
