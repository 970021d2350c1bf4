"""Choice between operators: which of several branches a network keeps."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf
from keras import ops

from udc_tf.layers.current_sample import current_sample
from udc_tf.layers.kernels import Shape


@keras.saving.register_keras_serializable("udc_tf")
class Choice(keras.layers.Layer):
    """One of several branches, to be decided by the search.

    Each branch is a layer or a functional model. All must give the same output shape. With
    `keras.layers.Identity()` among them the search decides on depth as well. Outside a search the
    layer is its first branch: put the operator of the original network there.

    Args:
        branches: list of two or more layers or functional models.

    Example:

    >>> x = keras.Input((8, 8, 16))
    >>> y = Choice([keras.layers.Conv2D(16, 3, padding="same"), keras.layers.Identity()])(x)
    >>> tuple(y.shape)
    (None, 8, 8, 16)
    """

    def __init__(self, branches: Sequence[keras.layers.Layer], **kwargs: Any):
        super().__init__(**kwargs)
        if len(branches) < 2:
            raise ValueError(f"A choice needs at least two branches. Received: {branches}")
        self.branches = list(branches)

    def build(self, input_shape: Shape) -> None:
        shapes = []
        for branch in self.branches:
            if not branch.built:
                branch.build(input_shape)
            shapes.append(tuple(branch.compute_output_shape(input_shape)))
        if len(set(shapes)) > 1:
            raise ValueError(
                f"All branches of the choice `{self.name}` must have the same output shape for the "
                f"input {input_shape}. Received: {shapes}"
            )

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        return self.branches[0](inputs)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return self.branches[0].compute_output_shape(input_shape)

    def get_config(self) -> dict[str, Any]:
        branches = [keras.saving.serialize_keras_object(b) for b in self.branches]
        return {**super().get_config(), "branches": branches}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Choice":
        config["branches"] = [keras.saving.deserialize_keras_object(b) for b in config["branches"]]
        return cls(**config)


class Mix(keras.layers.Layer):
    """sum_k z_k x_k over the outputs of a choice's branches; the first one outside a search."""

    def __init__(self, branches: int, **kwargs: Any):
        super().__init__(**kwargs)
        self.branch_count = branches
        self.decision: str | None = None

    def call(self, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
        sample = current_sample()
        if sample is None or self.decision is None:
            return ops.convert_to_tensor(inputs[0])
        z = ops.cast(sample.weights_of(self.decision), inputs[0].dtype)
        return sum(z[k] * x for k, x in enumerate(inputs))

    def compute_output_shape(self, input_shape: Sequence[Shape]) -> Shape:
        return input_shape[0]
