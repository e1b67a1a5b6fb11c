"""Monitor of a running job: the use of resources, what it shows, and what limits the job."""
