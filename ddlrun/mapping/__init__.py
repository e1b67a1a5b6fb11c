"""Mapping: the topology of a job, the placement of its ranks, and rank files."""
