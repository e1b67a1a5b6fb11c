"""Keras 3 over `ddlrun.ddl`: the same start values, averaged gradients and metrics."""

from __future__ import annotations

from typing import Any

import keras

from ddlrun import ddl
from ddlrun.ddl.consistency import agree, average_metrics
from ddlrun.errors import InputError

BACKEND = "torch"


class Callback(keras.callbacks.Callback):
    """Makes `model.fit` train one model on all learners, each with its own part of the data.

    Weights and the optimizer's state are rank 0's at the start, gradients are averaged in each step, metrics after each
    epoch. Put it first: callbacks after it see the averages. All learners need as many steps (`ddl.shard`). Gradients
    are averaged outside of the backend's compiled steps, so raises InputError on backends other than torch. `wire` as
    in `ddl.all_reduce`, for gradients.
    """

    def __init__(self, *, wire: str | None = None) -> None:
        super().__init__()
        self._wire = wire

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002 - Keras' interface
        """Broadcast rank 0's values, and average gradients from here on."""
        if keras.config.backend() != BACKEND:
            raise InputError(f"Keras on {keras.config.backend()!r}: set KERAS_BACKEND={BACKEND}")
        optimizer = self.model.optimizer
        optimizer.build(self.model.trainable_variables)
        variables = [*self.model.variables, *(v for v in optimizer.variables if "float" in str(v.dtype))]
        lines = [f"{v.path}: {v.dtype} of shape {tuple(v.shape)}" for v in variables]
        agree("Callback", lines, "all learners build the same model")
        for variable in variables:
            variable.assign(ddl.bcast(keras.ops.convert_to_numpy(variable).copy()))
        self._average(optimizer)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Leave the optimizer as it was."""
        vars(self.model.optimizer).pop("apply", None)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Average the metrics of the epoch, for the callbacks after this one too."""
        if logs:
            logs.update(average_metrics(logs))

    def _average(self, optimizer: Any) -> None:  # noqa: ANN401
        plain = type(optimizer).apply

        def apply(grads: list[Any], trainable_variables: list[Any] | None = None) -> None:
            ddl.all_reduce_n([grad for grad in grads if grad is not None], "avg", in_place=True, wire=self._wire)
            plain(optimizer, grads, trainable_variables)

        vars(optimizer)["apply"] = apply  # past Keras' own __setattr__, which tracks what it is given


# The names of IBM's DDL, whose second callback broadcast the start values.
DDLCallback = Callback


class DDLGlobalVariablesCallback(keras.callbacks.Callback):
    """Does nothing: `Callback` has broadcast the start values. For scripts that were written for IBM's DDL."""
