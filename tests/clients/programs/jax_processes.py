"""JAX's processes, each of which gathers the numbers of all.

    jax_processes.py [METHOD]

The method is one of JAX's for the detection of a cluster, such as mpi4py.
"""

import sys

import jax
import jax.numpy as jnp
from jax.experimental import multihost_utils

jax.distributed.initialize(cluster_detection_method=next(iter(sys.argv[1:]), None))
size = jax.process_count()
numbers = multihost_utils.process_allgather(jnp.array(jax.process_index()))
assert sorted(numbers.tolist()) == [*range(size)], numbers
multihost_utils.sync_global_devices("end")
if jax.process_index() == 0:
    print("gathered from", size)
