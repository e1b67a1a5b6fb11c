"""Monitoring of a training job from inside: iteration times, traffic, stragglers, core rebinding."""
