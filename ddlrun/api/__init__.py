"""Python interface: jobs that a program or a notebook starts."""
