"""The collectives of a group of ranks: arrays, operations, the engine that carries them out."""
