"""Measurement of a network by the ranks of an MPI job, which racks, bench and tune start.

Rank 0 prints one JSON object per line: {"progress": [words, share]} at intervals, {"result": {...}} at the end.
"""
