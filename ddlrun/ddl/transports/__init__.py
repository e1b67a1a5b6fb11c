"""Transports: the interface of communicators, and one folder per library that moves the messages."""
