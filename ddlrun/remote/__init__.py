"""Programs on this machine and on other hosts: starting them, probing hosts, following batch jobs."""
