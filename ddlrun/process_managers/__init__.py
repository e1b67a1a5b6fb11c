"""Process managers: the programs that start the processes of a job."""
