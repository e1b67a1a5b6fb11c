"""What measures a network: ranks of an MPI job that `ddlrun racks` and `ddlrun bench` start, and what they find.

Rank 0 prints JSON, a line each: {"progress": [done, of, words]} now and then, {"result": {...}} at the end.
"""
