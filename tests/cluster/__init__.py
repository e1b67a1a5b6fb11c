"""Test cluster: several hosts on one machine."""
