"""A batch norm behind every convolution that has none.

Where batch norms are folded into the weights, or there were none, the channels of a kernel can have
very different sizes, and one step for all of them wastes levels on the large ones. A batch norm
that changes nothing gives each channel a step of its own, at no cost: export folds it again.
"""

from typing import Any

import keras
import numpy as np

from udc_tf.graph.layer_rules import absorbed
from udc_tf.graph.trace import Graph, trace
from udc_tf.graph.traceable import as_functional, settle_normalizations
from udc_tf.graph.uses import Uses

_CONVOLUTIONS = (
    keras.layers.Conv1D,
    keras.layers.Conv2D,
    keras.layers.DepthwiseConv1D,
    keras.layers.DepthwiseConv2D,
)


def with_norms(model: keras.Model) -> keras.Model:
    """The same function, with batch norms put back; the model itself if that changes nothing.

    A convolution that gives an output of the model stays as it is, with its name.

    Example:

    >>> x = keras.Input((8, 8, 1))
    >>> y = keras.layers.Conv2D(4, 3, activation="relu", name="conv")(x)
    >>> model = keras.Model(x, keras.layers.GlobalMaxPooling2D(name="peak")(y))
    >>> [layer.name for layer in with_norms(model).layers[1:]]
    ['conv', 'conv_norm', 'conv_activation', 'peak']
    """
    graph = trace(model)
    bare = _without_norm(model, graph)
    if not bare:
        return model

    def clone(layer: keras.layers.Layer) -> keras.layers.Layer:
        config = layer.get_config()
        if layer.name in bare:
            config |= {"activation": "linear", "use_bias": False}
        return type(layer).from_config(config)

    def call(layer: keras.layers.Layer, *args: Any, **kwargs: Any) -> Any:
        outputs = layer(*args, **kwargs)
        if layer.name not in bare:
            return outputs
        activation = bare[layer.name].activation
        outputs = keras.layers.BatchNormalization(name=f"{layer.name}_norm")(outputs)
        if activation is keras.activations.linear:
            return outputs
        return keras.layers.Activation(activation, name=f"{layer.name}_activation")(outputs)

    functional = as_functional(model)
    tensors = keras.tree.flatten(functional.input)
    # Keras would give inputs names of its own.
    inputs = [
        keras.Input(batch_shape=tensor.shape, dtype=tensor.dtype, name=name)
        for tensor, name in zip(tensors, graph.input_names, strict=True)
    ]
    found = keras.models.clone_model(
        functional,
        keras.tree.pack_sequence_as(functional.input, inputs),
        clone_function=clone,
        call_function=call,
    )
    for layer in (x for x in model.layers if x.weights):
        if layer.name not in bare:
            found.get_layer(layer.name).set_weights(layer.get_weights())
            continue
        found.get_layer(layer.name).set_weights(layer.get_weights()[:1])
        norm: Any = found.get_layer(f"{layer.name}_norm")
        norm.moving_variance.assign(np.full(norm.moving_variance.shape, 1 - norm.epsilon))
        if layer.use_bias:
            norm.beta.assign(layer.bias)
    settle_normalizations(found)
    return found


def _without_norm(model: keras.Model, graph: Graph) -> dict[str, Any]:
    """Convolutions that are called once, and followed by no batch norm that folds."""
    uses = Uses.of(graph)
    names = [node.name for node in graph.nodes]
    outputs = {ref.id for ref in keras.tree.flatten(graph.outputs)}
    own = {layer.name: layer for layer in model.layers}
    found: dict[str, Any] = {}
    for node in graph.nodes:
        layer = own.get(node.name)
        if type(layer) not in _CONVOLUTIONS or names.count(node.name) > 1:
            continue
        if outputs & {ref.id for ref in keras.tree.flatten(node.outputs)}:
            continue
        followers = absorbed(node, uses)
        if not any(isinstance(n.layer, keras.layers.BatchNormalization) for n in followers):
            found[node.name] = layer
    return found
