"""Every layer and every activation of Keras: exported, or refused before training."""

import inspect

import keras
import pytest
from absl import logging as absl_logging
from keras import layers as kl

import udc_tf
from udc_tf.export.lowering import lower
from udc_tf.graph.trace import trace
from udc_tf.graph.verdicts import refusals

_ROOMY = udc_tf.Flash("64MiB")

# What a layer is given that takes no image of 8x8 in 4 channels.
_SEQUENCE, _VOLUME, _FILMS, _VECTOR = (16, 16), (4, 4, 4, 4), (2, 2, 4, 4, 4), (256,)
_IMAGE, _COLOURS = (8, 8, 4), (8, 8, 3)
_SHORT = (2, 128)  # steps are operators
_STRINGS = "strings"

# Layers that need arguments or another input than an image: how they are made, and on what.
_MADE = {
    "Activation": lambda: kl.Activation("relu"),
    "AdditiveAttention": (kl.AdditiveAttention, _SEQUENCE),
    "Attention": (kl.Attention, _SEQUENCE),
    "Bidirectional": (lambda: kl.Bidirectional(kl.LSTM(3)), _SHORT),
    "CategoryEncoding": (lambda: kl.CategoryEncoding(8), _VECTOR),
    "CenterCrop": lambda: kl.CenterCrop(4, 4),
    "ConvLSTM1D": (lambda: kl.ConvLSTM1D(3, 2), _IMAGE),
    "ConvLSTM2D": (lambda: kl.ConvLSTM2D(3, 2), _VOLUME),
    "ConvLSTM3D": (lambda: kl.ConvLSTM3D(3, 2), _FILMS),
    "Dense": (lambda: kl.Dense(3), _VECTOR),
    "Discretization": lambda: kl.Discretization([0.0, 1.0]),
    "Dot": (lambda: kl.Dot(1), _VECTOR),
    "EinsumDense": lambda: kl.EinsumDense("abcd,de->abce", (None, None, 3)),
    "Embedding": (lambda: kl.Embedding(8, 3), _VECTOR),
    "GRU": (lambda: kl.GRU(3), _SHORT),
    "GRUCell": (lambda: kl.RNN(kl.GRUCell(3)), _SEQUENCE),
    "GroupNormalization": lambda: kl.GroupNormalization(2),
    "GroupQueryAttention": (lambda: kl.GroupQueryAttention(4, 2, 1), _SEQUENCE),
    "HashedCrossing": (lambda: kl.HashedCrossing(4), _STRINGS),
    "Hashing": (lambda: kl.Hashing(4), _STRINGS),
    "IntegerLookup": (lambda: kl.IntegerLookup(vocabulary=[1, 2]), _VECTOR),
    "LSTM": (lambda: kl.LSTM(3), _SHORT),
    "LSTMCell": (lambda: kl.RNN(kl.LSTMCell(3)), _SEQUENCE),
    "Lambda": lambda: kl.Lambda(_doubled),
    "MaxNumBoundingBoxes": lambda: kl.MaxNumBoundingBoxes(2),
    "MelSpectrogram": (lambda: kl.MelSpectrogram(num_mel_bins=4, fft_length=32), _VECTOR),
    "MultiHeadAttention": (lambda: kl.MultiHeadAttention(2, 3), _SEQUENCE),
    "Normalization": lambda: kl.Normalization(mean=1.0, variance=2.0),
    "Permute": lambda: kl.Permute((2, 1, 3)),
    "Pipeline": lambda: kl.Pipeline([kl.Rescaling(2.0)]),
    "RNN": (lambda: kl.RNN(kl.SimpleRNNCell(3)), _SEQUENCE),
    "RandomColorDegeneration": (lambda: kl.RandomColorDegeneration(0.5), _COLOURS),
    "RandomGaussianBlur": lambda: kl.RandomGaussianBlur(kernel_size=3),
    "RandomPosterization": lambda: kl.RandomPosterization(4),
    "RandomTranslation": lambda: kl.RandomTranslation(0.1, 0.1),
    "RandomZoom": lambda: kl.RandomZoom(0.1),
    "RepeatVector": (lambda: kl.RepeatVector(3), _VECTOR),
    "Rescaling": lambda: kl.Rescaling(2.0),
    "Reshape": lambda: kl.Reshape((4, 64)),
    "Resizing": lambda: kl.Resizing(4, 4),
    "ReversibleEmbedding": (lambda: kl.ReversibleEmbedding(8, 3), _VECTOR),
    "STFTSpectrogram": (lambda: kl.STFTSpectrogram(frame_length=32, fft_length=32), (256, 1)),
    "SimpleRNN": (lambda: kl.SimpleRNN(3), _SHORT),
    "SimpleRNNCell": (lambda: kl.RNN(kl.SimpleRNNCell(3)), _SEQUENCE),
    "SpectralNormalization": lambda: kl.SpectralNormalization(kl.Conv2D(3, 3)),
    "StackedRNNCells": (lambda: kl.RNN(kl.StackedRNNCells([kl.LSTMCell(3)])), _SEQUENCE),
    "StringLookup": (lambda: kl.StringLookup(vocabulary=["a"]), _STRINGS),
    "TextVectorization": (lambda: kl.TextVectorization(vocabulary=["a"]), _STRINGS),
    "TimeDistributed": (lambda: kl.TimeDistributed(kl.Dense(3)), _SHORT),
}
# No network has these: no layer at all, the beginning of a network, what others derive from, one
# that Keras itself does not take into a functional model (it returns its own input), and what
# stands for models of other frameworks.
_NO_LAYERS = ("InputSpec", "InputLayer", "Layer", "Wrapper", "Equalization")
_FOREIGN = ("FlaxLayer", "JaxLayer", "TFSMLayer", "TorchModuleWrapper")
_SEVERAL_INPUTS = (
    *("Add", "Average", "Concatenate", "Dot", "Maximum", "Minimum", "Multiply", "Subtract"),
    *("AdditiveAttention", "Attention", "GroupQueryAttention", "MultiHeadAttention"),
    "HashedCrossing",
)
_AS_LIST = (*_SEVERAL_INPUTS[:8], "AdditiveAttention", "Attention", "HashedCrossing")
_LAYERS = [
    name
    for name in dir(kl)
    if isinstance(kind := getattr(kl, name), type)
    and kind.__name__ == name  # once, not by its other names, too
    and name not in (*_NO_LAYERS, *_FOREIGN)
]
_ACTIVATIONS = [
    name
    for name in dir(keras.activations)
    if inspect.isfunction(getattr(keras.activations, name))
    and name not in ("get", "serialize", "deserialize")
]


@keras.saving.register_keras_serializable("verdicts_test")
def _doubled(x):
    return x + x


def _made(name: str):
    """The layer, named `tested`, and the shape of what it is given."""
    made = _MADE.get(name)
    if made is None:
        settings = inspect.signature(getattr(kl, name)).parameters
        known = {"filters": 3, "kernel_size": 2, "pool_size": 2, "output_size": 2}
        known |= {"factor": 0.5, "rate": 0.5, "stddev": 0.5}
        needed = {k: v for k, v in known.items() if k in settings}
        if {"height", "width"} <= set(settings):
            needed |= {"height": 4, "width": 4}
        made = lambda: getattr(kl, name)(**needed)  # noqa: E731
    make, shape = made if isinstance(made, tuple) else (made, None)
    if shape is None and name.removesuffix("Transpose").endswith("1D"):
        shape = _SEQUENCE
    if shape is None and name.removesuffix("Transpose").endswith("3D"):
        shape = _VOLUME
    layer = make()
    layer.name = "tested"
    return layer, shape


def _network(name: str) -> keras.Model:
    layer, shape = _made(name)
    image = keras.Input((8, 8, 4), name="image")
    x = stem = kl.Conv2D(4, 1, name="stem")(image)
    inputs, others = [image], []
    if shape == _STRINGS:
        inputs.append(x := keras.Input((1,), dtype="string", name="strings"))
        others = [kl.Conv2D(2, 1, name="besides")(stem)]
    elif shape == _COLOURS:
        x = kl.Conv2D(3, 1, name="colours")(x)
    elif shape is not None:
        x = kl.Reshape(shape, name="reshaped")(x)
    if name in _SEVERAL_INPUTS:
        again = x if shape == _STRINGS else kl.ReLU(name="again")(x)
        y = layer([x, again]) if name in _AS_LIST else layer(x, again)
    else:
        y = layer(x)
    return keras.Model(inputs, [*others, *keras.tree.flatten(y)])


def _right_or_refused(model: keras.Model, name: str) -> str | None:
    """The sentence in which a network is refused; None if it can be lowered."""
    try:
        udc_tf.make_searchable(model, "ethos_u55", _ROOMY)
    except ValueError as error:
        said = str(error)
        assert f"`{name}`" in said and "\n" not in said and "Received: " in said, said
        assert "; " in said, said  # what to do instead
        return said
    lower(udc_tf.compact(model))
    return None


class TestEveryLayer:
    @pytest.mark.parametrize("name", _LAYERS)
    def test_is_lowered_or_refused(self, name):
        _right_or_refused(_network(name), "tested")

    def test_some_are_lowered_and_some_refused(self):
        assert _right_or_refused(_network("MaxPooling2D"), "tested") is None
        said = _right_or_refused(_network("AdditiveAttention"), "tested")
        assert "for ethos-u55-128" in said and "take Attention" in said

    @pytest.mark.parametrize("name", _ACTIVATIONS)
    def test_activation_is_lowered_or_refused(self, name):
        function = getattr(keras.activations, name)
        x = keras.Input((8, 8, 4))
        inside = kl.Conv2D(4, 1, activation=function, name="tested")(x)
        inside = _right_or_refused(keras.Model(x, inside), "tested")
        stem = kl.Conv2D(4, 1, name="stem")(x)
        alone = keras.Model(x, kl.Activation(function, name="tested")(stem))
        assert (inside is None) == (_right_or_refused(alone, "tested") is None)
        if inside is not None:
            assert "; take " in inside


@keras.saving.register_keras_serializable("verdicts_test")
class _OwnCall(kl.Conv2D):
    def call(self, inputs):
        return 2 * super().call(inputs)


@keras.saving.register_keras_serializable("verdicts_test")
class _OfTheFuture(kl.Layer):
    """As a layer that a later version of Keras brings."""

    def call(self, inputs):
        return inputs


class TestUnknown:
    def test_subclass_with_a_call_of_its_own(self):
        x = keras.Input((8, 8, 4))
        model = keras.Model(x, kl.Conv2D(2, 1)(_OwnCall(4, 1, name="tested")(x)))
        assert "with its own `call`" in _right_or_refused(model, "tested")

    def test_layer_of_another_version(self, monkeypatch):
        monkeypatch.setattr(_OfTheFuture, "__module__", "keras.src.layers.of_the_future")
        x = keras.Input((8, 8, 4))
        model = keras.Model(x, _OfTheFuture(name="tested")(kl.Conv2D(4, 1)(x)))
        assert "_OfTheFuture has no int8 operator" in _right_or_refused(model, "tested")

    def test_operation_of_keras(self):
        x = keras.Input((8, 8, 4))
        model = keras.Model(x, keras.ops.cumsum(kl.Conv2D(4, 1)(x), axis=1))
        assert "Cumsum has no int8 operator" in _right_or_refused(model, "cumsum")

    def test_sizes_that_are_not_known(self):
        x = keras.Input((None, None, 3), name="any_size")
        model = keras.Model(x, kl.Conv2D(4, 3)(x))
        assert "give keras.Input every size" in _right_or_refused(model, "any_size")


class TestOtherTargets:
    def test_search_and_warn(self, caplog):
        model = _network("AdditiveAttention")
        absl_logging.use_absl_handler()
        with caplog.at_level("WARNING", logger="absl"):
            udc_tf.make_searchable(model, "ethos_u55", udc_tf.PaperSize("64MiB"))
        assert "training goes on, but" in caplog.text and "`tested`" in caplog.text

    def test_one_device_among_them_refuses(self):
        targets = [udc_tf.PaperSize("64MiB"), _ROOMY]
        with pytest.raises(ValueError, match=r"`tested` .*AdditiveAttention"):
            udc_tf.make_searchable(_network("AdditiveAttention"), "ethos_u55", targets)


def test_several_refusals_are_counted():
    x = keras.Input((8, 8, 4))
    y = kl.LayerNormalization(1, name="a")(kl.Conv2D(4, 1)(x))
    y = kl.UnitNormalization(1, name="c")(kl.LayerNormalization(1, name="b")(y))
    model = keras.Model(x, y)
    assert [row.name for row in refusals(trace(model))] == ["a", "b", "c"]
    with pytest.raises(ValueError, match=r"`a` .*so are 2 more: `b`, `c`\)"):
        udc_tf.make_searchable(model, "ethos_u55", _ROOMY)
