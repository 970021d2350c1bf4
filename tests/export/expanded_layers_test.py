"""Layers that are several operators: one tiny network each, as in `layers_test`."""

import keras
import pytest
from keras import layers as kl

from tests.export.layers_test import IMAGE, VECTOR, arrives, conv, head

WIDE = (12, 16)
_GAINS = keras.initializers.RandomUniform(0.5, 1.5)
EXPANDED = {
    "LayerNormalization": (
        IMAGE,
        lambda x: conv(kl.LayerNormalization(gamma_initializer=_GAINS)(kl.Conv2D(16, 3)(x))),
    ),
    "LayerNormalization of a vector": (
        VECTOR,
        lambda x: kl.LayerNormalization(center=False)(kl.Dense(16)(x)),
    ),
    "RMSNormalization": (WIDE, lambda x: conv(kl.RMSNormalization()(x))),
    "GroupNormalization": (
        IMAGE,
        lambda x: conv(kl.GroupNormalization(2, gamma_initializer=_GAINS)(kl.Conv2D(8, 3)(x))),
    ),
    "instance normalization": (IMAGE, lambda x: conv(kl.GroupNormalization(-1)(conv(x, None)))),
    "cosine": (VECTOR, lambda x: kl.Dot(1, normalize=True)([kl.Dense(16)(x), kl.Dense(16)(x)])),
    "Dot of sequences": (WIDE, lambda x: kl.Dot((1, 1))([conv(x), conv(x, None)])),
    "Attention": (WIDE, lambda x: conv(kl.Attention(dropout=0.1)([x, x]))),
    "MultiHeadAttention": (
        WIDE,
        lambda x: kl.MultiHeadAttention(4, 4, value_dim=3, output_shape=6)(
            query=conv(x, None), key=conv(x), value=x
        ),
    ),
    "EinsumDense": (
        WIDE,
        lambda x: kl.EinsumDense("abc,cde->abde", (None, 4, 5), "relu", bias_axes="de")(x),
    ),
    "a transformer's block": (WIDE, lambda x: head(_block(x))),
    "an enlarged image behind another": (IMAGE, lambda x: conv(_beside_a_larger(conv(x)))),
}


def _beside_a_larger(x):
    enlarged = kl.UpSampling2D(interpolation="bilinear")(kl.MaxPooling2D()(x))
    return kl.Concatenate()([x, enlarged])


def _block(x):
    y = kl.LayerNormalization()(x)
    x = x + kl.MultiHeadAttention(2, 8)(y, y)
    return x + kl.Dense(16)(kl.Dense(24, activation="gelu")(kl.LayerNormalization()(x)))


@pytest.mark.parametrize("kind", EXPANDED)
def test_arrives(kind):
    shape, layers = EXPANDED[kind]
    arrives(shape, layers)
