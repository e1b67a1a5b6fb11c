"""Plan: the settings of a launch, the plan that is computed from them, and its outcome."""
