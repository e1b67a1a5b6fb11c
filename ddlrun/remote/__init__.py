"""Programs on this machine and on other hosts: start them, query hosts, follow batch jobs."""
