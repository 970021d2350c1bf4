"""Makes a model ready to be traced: one whose graph can be read, or a copy that computes the same.

Keras copies a model by its configuration. What a configuration does not hold (a layer called in
two places, a function that shares the name of one of Keras' own, constants read from weights) is
set right here or refused.
"""

import inspect
from typing import Any

import keras


def as_functional(model: keras.Model) -> keras.Model:
    """A model whose `input` and `output` can be read: of a Sequential, one of its layers."""
    if isinstance(model, keras.Sequential):
        if not model.built:
            raise ValueError(
                f"The Sequential model `{model.name}` has no input shape yet: add a keras.Input "
                "as its first layer, or call it once."
            )
        return keras.Model(model.inputs[0], model.outputs[0], name=model.name)
    try:
        model.input  # noqa: B018 - defined for functional models only
    except AttributeError:
        raise ValueError(
            "A functional or Sequential Keras model is needed: the graph of a subclassed model "
            f"cannot be read. Received: {model} of class {type(model).__name__}"
        ) from None
    return model


def plain(model: keras.Model) -> keras.Model:
    """A functional model of the user's own class as an ordinary one: training is done otherwise.

    >>> class Trained(keras.Model):
    ...     def train_step(self, data): ...
    >>> x = keras.Input((4,))
    >>> type(plain(Trained(x, keras.layers.Dense(2)(x)))).__name__
    'Functional'
    """
    if isinstance(model, keras.Sequential) or type(model).__module__.split(".")[0] == "keras":
        return model
    functional = as_functional(model)
    return keras.Model(functional.input, functional.output, name=functional.name)


def true_copy(model: keras.Model) -> keras.Model:
    """A copy of a functional model with its weights; refuses one that would compute otherwise."""
    try:
        copy = keras.models.clone_model(model)
    except Exception as error:  # whatever a layer's own code raises
        raise not_copied(model, error) from error
    _require_same_weights(model, copy)
    copy.set_weights(model.get_weights())
    require_same_functions(model, copy)
    return copy


def not_copied(model: keras.Model, error: Exception) -> ValueError:
    """What to say of a model that Keras cannot make anew from its configuration."""
    strange = [layer for layer in model.layers if not _loads_again(layer)]
    named = ", ".join(f"`{layer.name}` ({type(layer).__name__})" for layer in strange)
    return ValueError(
        f"`{model.name}` cannot be copied, for Keras does not read {named or 'a layer of it'} back "
        "from its configuration; take operations of keras.ops for a Lambda, an activation of "
        "keras.activations for a function of your own, or register your own with "
        "@keras.saving.register_keras_serializable(). Received: "
        + (f"{len(strange)} such" if strange else " ".join(str(error).split())[:_ENOUGH])
    )


_ENOUGH = 200  # characters of what Keras says, which may go on to quote the whole model


def _loads_again(layer: keras.layers.Layer) -> bool:
    try:
        keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(layer))
    except Exception:  # whatever a layer's own code raises
        return False
    return True


def _require_same_weights(original: keras.Model, copy: keras.Model) -> None:
    """Refuses a layer that is called inside a nested model and outside: Keras makes two of it."""
    if len(original.weights) == len(copy.weights):
        return
    inside = [inner for layer in original.layers for inner in _layers_inside(layer)]
    names = ", ".join(f"`{layer.name}`" for layer in original.layers if layer in inside)
    raise ValueError(
        f"The model `{original.name}` calls a layer inside a nested model and outside of it, too, "
        "which Keras copies as two layers: call such a layer in one place, or give the nested "
        f"model a second output. Received: {names or 'layers that are not copied as one'}"
    )


def _layers_inside(layer: Any) -> list[Any]:
    """All layers of a nested model, and of those in it."""
    own = layer.layers if isinstance(layer, keras.Model) else []
    return [*own, *(inner for nested in own for inner in _layers_inside(nested))]


def require_same_functions(original: keras.Model, copy: keras.Model) -> None:
    """Refuses an activation that its name alone made another one in the copy (or in a file)."""
    for layer, twin in zip(original.layers, copy.layers, strict=True):
        _require_same_functions(layer, twin)


def _require_same_functions(layer: Any, twin: Any) -> None:
    if isinstance(layer, keras.Model):
        require_same_functions(layer, twin)
    for wrapped in ("layer", "forward_layer", "backward_layer"):
        if isinstance(inner := getattr(layer, wrapped, None), keras.layers.Layer):
            _require_same_functions(inner, getattr(twin, wrapped))
    for name in ("activation", "recurrent_activation"):
        own, copied = (getattr(x, name, None) for x in (layer, twin))
        if inspect.isfunction(own) and own is not copied:
            raise ValueError(
                f"Keras takes the activation of the layer `{layer.name}` for its own function of "
                "that name when it copies or saves the model: rename it, or register it with "
                f"keras.saving.register_keras_serializable. Received: {own}"
            )


def settle_normalizations(model: keras.Model) -> None:
    """A `Normalization` reads its weights anew: setting them alone does not tell it."""
    for layer in model.layers:
        if isinstance(layer, keras.Model):
            settle_normalizations(layer)
        elif isinstance(layer, keras.layers.Normalization):
            layer.finalize_state()
