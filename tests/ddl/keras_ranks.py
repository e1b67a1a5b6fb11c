"""A rank of test_keras.py: model.fit over all ranks, compared with a single process.

    KERAS_BACKEND=torch mpirun -n 2 python -m mpi4py keras_ranks.py

Rank 0 prints whether all ranks end with the same weights and metrics, and whether these are those of one process.
"""

from typing import Any

import keras
import numpy as np

from ddlrun import ddl
from ddlrun.errors import InputError

EACH, EPOCHS, STEPS = 8, 4, 5


def net(seed: int) -> Any:
    keras.utils.set_random_seed(seed)
    layers = [keras.layers.Dense(9, activation="tanh"), keras.layers.Dense(3)]
    model = keras.Sequential([keras.Input((6,)), *layers])
    model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    return model


def fit(model: Any, size: int, rank: int, *callbacks: Any) -> Any:
    """Train on rows in such an order that each global batch consists of the ranks' batches."""
    random = np.random.default_rng(1)
    shape = (STEPS, ddl.size(), EACH)
    x, y = (random.normal(size=(*shape, width)).astype(np.float32) for width in (6, 3))
    mine = slice(rank, rank + 1) if size > 1 else slice(None)
    x, y = (part[:, mine].reshape(-1, part.shape[-1]) for part in (x, y))
    batch = len(x) // STEPS
    return model.fit(x, y, batch, EPOCHS, verbose=0, shuffle=False, callbacks=list(callbacks)).history


def error_of_unknown_wire() -> str:
    """Return the error of an unknown wire: it reaches the reduction of gradients."""
    try:
        fit(net(0), ddl.size(), ddl.rank(), ddl.DDLCallback(wire="float8"))
    except InputError as error:
        return str(error)
    return ""


def main() -> None:
    ddl.init()
    model = net(ddl.rank())  # different weights: the callback broadcasts those of rank 0
    history = fit(model, ddl.size(), ddl.rank(), ddl.DDLCallback(), ddl.DDLGlobalVariablesCallback())
    values = np.concatenate([*(w.reshape(-1) for w in model.get_weights()), *map(np.array, history.values())])
    rows = ddl.allgather(values)
    lonely = net(0)
    alone = fit(lonely, 1, 0)
    close = [np.allclose(a, b, atol=1e-4) for a, b in zip(model.get_weights(), lonely.get_weights(), strict=True)]
    close += [np.allclose(history[name], alone[name], rtol=1e-3) for name in alone]
    afterwards, refused = "apply" in vars(model.optimizer), "wire 'float8'" in error_of_unknown_wire()
    if ddl.rank() == 0:
        print(f"same {(rows == rows[0]).all()}, as alone {all(close)}, afterwards {afterwards}, refused {refused}")
    ddl.free()


if __name__ == "__main__":
    main()
