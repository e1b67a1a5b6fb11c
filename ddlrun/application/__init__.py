"""The application: the stages of a launch, which the command line and the Python interface call."""
