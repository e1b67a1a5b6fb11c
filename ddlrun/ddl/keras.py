"""Keras 3 with `ddlrun.ddl`: equal start values, averaged gradients and metrics."""

from __future__ import annotations

from typing import Any

import keras

from ddlrun.ddl import session
from ddlrun.ddl.consistency import average_metrics, check_agreement
from ddlrun.errors import InputError

BACKEND = "torch"


class Callback(keras.callbacks.Callback):
    """Trains one model on all learners in `model.fit`, each with its own part of the data.

    At the start all learners get rank 0's weights and optimizer state. Gradients are averaged in each step, metrics
    after each epoch. Put it first in the list: callbacks after it see the averages. All learners need the same number
    of steps (`ddl.shard`). Gradients are averaged outside of compiled steps, which only the backend torch allows.

    Args:
        wire: As in `ddl.all_reduce`, for gradients.

    Raises:
        InputError: At the start of training, if the backend is not torch or the learners' models differ.
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
        check_agreement("Callback", lines, "all learners build the same model")
        for variable in variables:
            variable.assign(session.bcast(keras.ops.convert_to_numpy(variable).copy()))
        self._average_gradients(optimizer)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Restore the optimizer."""
        vars(self.model.optimizer).pop("apply", None)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Average the metrics of the epoch, also for the callbacks after this one."""
        if logs:
            logs.update(average_metrics(logs))

    def _average_gradients(self, optimizer: Any) -> None:  # noqa: ANN401
        plain = type(optimizer).apply

        def apply(grads: list[Any], trainable_variables: list[Any] | None = None) -> None:
            gradients = [grad for grad in grads if grad is not None]
            session.all_reduce_n(gradients, "avg", in_place=True, wire=self._wire)
            plain(optimizer, grads, trainable_variables)

        vars(optimizer)["apply"] = apply  # not by setattr: Keras' own __setattr__ would track it


# The names of IBM's DDL, whose second callback broadcast the start values.
DDLCallback = Callback


class DDLGlobalVariablesCallback(keras.callbacks.Callback):
    """Does nothing, because `Callback` broadcasts the start values. For scripts that were written for IBM's DDL."""
