"""The test cluster: several hosts on one machine."""
