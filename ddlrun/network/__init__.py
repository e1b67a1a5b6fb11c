"""What a job talks over: the hosts' subnets, the links of a cluster, and what an allreduce costs there."""
