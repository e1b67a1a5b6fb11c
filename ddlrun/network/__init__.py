"""The network of a job: the hosts' subnets, the links of a cluster, and the cost of an allreduce there."""
