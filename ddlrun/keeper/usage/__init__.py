"""The use of resources by a rank, its host and its GPUs, sampled at an interval."""
