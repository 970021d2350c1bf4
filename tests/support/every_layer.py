"""Every layer and every activation of Keras, each made with some arguments for some input."""

import inspect
from collections.abc import Iterable

import keras
from keras import layers as kl

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
    "LayerNormalization": (kl.LayerNormalization, _SEQUENCE),
    "Lambda": lambda: kl.Lambda(_doubled),
    "MaxNumBoundingBoxes": lambda: kl.MaxNumBoundingBoxes(2),
    "MelSpectrogram": (lambda: kl.MelSpectrogram(num_mel_bins=4, fft_length=32), _VECTOR),
    "MultiHeadAttention": (lambda: kl.MultiHeadAttention(2, 3), _SEQUENCE),
    "Normalization": lambda: kl.Normalization(mean=1.0, variance=2.0),
    "Permute": lambda: kl.Permute((2, 1, 3)),
    "Pipeline": lambda: kl.Pipeline([kl.Rescaling(2.0)]),
    "RMSNormalization": (kl.RMSNormalization, _SEQUENCE),
    "RNN": (lambda: kl.RNN(kl.SimpleRNNCell(3)), _SEQUENCE),
    "RandomColorDegeneration": (lambda: kl.RandomColorDegeneration(0.5), _COLOURS),
    "RandomGaussianBlur": lambda: kl.RandomGaussianBlur(kernel_size=3),
    "RandomPosterization": lambda: kl.RandomPosterization(4),
    "RandomTranslation": lambda: kl.RandomTranslation(0.1, 0.1),
    "RandomZoom": lambda: kl.RandomZoom(0.1),
    "RepeatVector": (lambda: kl.RepeatVector(3), _VECTOR),
    "Rescaling": lambda: kl.Rescaling(2.0),
    "Reshape": lambda: kl.Reshape((4, 64)),
    "Resizing": lambda: kl.Resizing(16, 16),
    "ReversibleEmbedding": (lambda: kl.ReversibleEmbedding(8, 3), _VECTOR),
    "STFTSpectrogram": (lambda: kl.STFTSpectrogram(frame_length=32, fft_length=32), (256, 1)),
    "SimpleRNN": (lambda: kl.SimpleRNN(3), _SHORT),
    "SimpleRNNCell": (lambda: kl.RNN(kl.SimpleRNNCell(3)), _SEQUENCE),
    "SpectralNormalization": lambda: kl.SpectralNormalization(kl.Conv2D(3, 3)),
    "StackedRNNCells": (lambda: kl.RNN(kl.StackedRNNCells([kl.LSTMCell(3)])), _SEQUENCE),
    "StringLookup": (lambda: kl.StringLookup(vocabulary=["a"]), _STRINGS),
    "TextVectorization": (lambda: kl.TextVectorization(vocabulary=["a"]), _STRINGS),
    "UnitNormalization": (kl.UnitNormalization, _SEQUENCE),
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
LAYERS = [
    name
    for name in dir(kl)
    if isinstance(kind := getattr(kl, name), type)
    and kind.__name__ == name  # once, not by its other names, too
    and name not in (*_NO_LAYERS, *_FOREIGN)
]
# These do something in training only, and that takes long.
AUGMENTATIONS = [n for n in LAYERS if n.startswith("Rand") or n in ("AugMix", "CutMix", "MixUp")]
ACTIVATIONS = [
    name
    for name in dir(keras.activations)
    if inspect.isfunction(getattr(keras.activations, name))
    and name not in ("get", "serialize", "deserialize")
]


@keras.saving.register_keras_serializable("every_layer")
def _doubled(x):
    return x + x


def _made(name: str):
    """What makes the layer, and the shape of what it is given; None if that is an image."""
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
    if shape is None and name in AUGMENTATIONS:
        shape = _COLOURS
    return make, shape


def takes_numbers(name: str) -> bool:
    """Whether a layer is for tensors of numbers rather than strings."""
    return _made(name)[1] != _STRINGS


def applied(name: str, stem: keras.KerasTensor, label: str = "tested") -> list[keras.KerasTensor]:
    """What a layer, called `label`, makes of an image, of which it is given what it takes."""
    make, shape = _made(name)
    layer, x = make(), stem
    layer.name = label
    if shape == _COLOURS:
        x = kl.Conv2D(3, 1, name=f"{label}_colours")(x)
    elif shape is not None:
        x = kl.Reshape(shape, name=f"{label}_reshaped")(x)
    if name in _SEVERAL_INPUTS:
        again = kl.ReLU(name=f"{label}_again")(x)
        return keras.tree.flatten(layer([x, again]) if name in _AS_LIST else layer(x, again))
    return keras.tree.flatten(layer(x))


def network_of(name: str) -> keras.Model:
    """A network with one layer, `tested`, behind a convolution."""
    image = keras.Input(_IMAGE, name="image")
    stem = kl.Conv2D(4, 1, name="stem")(image)
    if takes_numbers(name):
        return keras.Model(image, applied(name, stem))
    strings = keras.Input((1,), dtype="string", name="strings")
    layer = _made(name)[0]()
    layer.name = "tested"
    outputs = layer([strings, strings]) if name in _AS_LIST else layer(strings)
    besides = kl.Conv2D(2, 1, name="besides")(stem)
    return keras.Model([image, strings], [besides, *keras.tree.flatten(outputs)])


def network_of_all(names: Iterable[str]) -> keras.Model:
    """A network with a branch for each layer, named by its kind, and an output for each branch."""
    image = keras.Input(_IMAGE, name="image")
    stem = kl.Conv2D(4, 1, name="stem")(image)
    return keras.Model(image, [y for name in names for y in applied(name, stem, name)])


def network_of_activations(names: Iterable[str]) -> keras.Model:
    """A network with a convolution for each activation, and an output for each."""
    image = keras.Input((4, 4, 4), name="image")
    stem = kl.Conv2D(4, 1, name="stem")(image)
    outputs = [kl.Conv2D(4, 1, activation=name, name=name)(stem) for name in names]
    return keras.Model(image, outputs)
