"""The choice of an algorithm, its parameters and its format on the network, and the measurements behind it."""
