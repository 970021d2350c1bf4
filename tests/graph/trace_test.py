"""Models within models, as one flat list of calls."""

import keras
import numpy as np
import pytest
from keras import layers as kl

from tests.support.networks import normal
from udc_tf.export import agreement
from udc_tf.graph.trace import trace


class TestNestedModels:
    @staticmethod
    def _inner():
        x = keras.Input((6,))
        return keras.Model(x, kl.Dense(6, name="dense")(x))

    def _names(self, model) -> list[str]:
        graph, data = trace(model), normal(6, count=4)
        (output,) = keras.tree.flatten(graph.outputs)
        found = agreement.keras_values(graph, [data])[output.id]
        np.testing.assert_allclose(found, model(data), rtol=1e-4, atol=1e-6)
        return [node.name for node in graph.nodes]

    def test_called_on_its_own_output(self):
        x, inner = keras.Input((6,)), self._inner()
        assert len(set(self._names(keras.Model(x, inner(inner(x)))))) == 1

    def test_layers_of_one_name_in_two_models(self):
        x = keras.Input((6,))
        sequential = keras.Sequential([keras.Input((6,)), kl.Dense(6, name="dense"), kl.ReLU()])
        names = self._names(keras.Model(x, sequential(self._inner()(self._inner()(x)))))
        assert len(set(names)) == 4

    def test_a_layer_called_inside_and_outside_is_refused(self):
        inner = keras.Sequential([kl.Dense(4, name="both"), kl.ReLU()])
        inputs = keras.Input((4,))
        model = keras.Model(inputs, kl.Add()([inner(inputs), inner.layers[0](inputs)]))
        with pytest.raises(ValueError, match=r"in one place.*Received: `both`"):
            trace(model)

    def test_one_tensor_for_several_inputs(self):
        a, b, x = (keras.Input((6,)) for _ in range(3))
        inner = keras.Model([a, b], kl.Add()([kl.Dense(6)(a), b]))
        hidden = kl.Dense(6)(x)
        assert len(self._names(keras.Model(x, inner([hidden, hidden])))) == 3
