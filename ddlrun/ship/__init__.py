"""Files of a job on their way to the local disks of its hosts."""
