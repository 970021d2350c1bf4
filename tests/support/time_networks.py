"""Networks with layers over time, drawn at random and written as int8."""

import keras
import numpy as np
from keras import layers as kl

import udc_tf
from udc_tf.export.int8 import to_int8

_MERGES = ("concat", "sum", "mul", "ave")


def random_over_time(seed: int) -> bytes:
    """A small network with recurrent layers, the same for the same seed."""
    rng = np.random.default_rng(seed)
    keras.utils.set_random_seed(seed)
    steps, features = (int(n) for n in rng.integers([2, 1], [7, 12]))
    x = inputs = keras.Input((steps, features))
    if rng.random() < 0.5:
        x = kl.TimeDistributed(kl.Dense(int(rng.integers(2, 12)), activation="relu"))(x)
    depth = int(rng.integers(1, 3))
    for level in range(depth):
        x = _layer(rng, returns=level + 1 < depth or rng.random() < 0.3)(x)
    model = keras.Model(inputs, kl.Dense(int(rng.integers(2, 8)))(x))
    tiny = udc_tf.compact(
        model, bits=int(rng.choice([1, 2, 4, 8])), nonzeros=float(rng.choice([0.3, 1.0]))
    )
    data = rng.normal(size=(16, steps, features)).astype("float32")
    return to_int8(tiny, data, copy=False).content


def _layer(rng: np.random.Generator, returns: bool) -> keras.layers.Layer:
    settings = {
        "units": int(rng.integers(1, 24)),
        "return_sequences": returns,
        "use_bias": bool(rng.random() < 0.8),
    }
    kind = rng.integers(3)
    if kind == 0:
        layer = kl.LSTM(**settings)
    elif kind == 1:
        layer = kl.GRU(**settings, reset_after=bool(rng.random() < 0.5))
    else:
        layer = kl.SimpleRNN(**settings, activation=str(rng.choice(["tanh", "relu"])))
    if rng.random() < 0.3:
        return kl.Bidirectional(layer, merge_mode=str(rng.choice(_MERGES)))
    layer.go_backwards = bool(rng.random() < 0.3)
    return layer
