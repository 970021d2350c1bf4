"""What has no int8 operator, and what to take instead."""

from udc_tf.graph.rule import Channels, Range, Rule, one


def refused(
    why: str,
    operator: str,
    channels: Channels = Channels.READS_WHOLE,
    range: Range = Range.NEW,
) -> Rule:
    """A network with such a layer cannot be exported; it is still priced, as one operator."""
    return Rule(None, channels, range, price=one(operator), refused=why)


def missing(kind: str, alternative: str | None = None) -> Rule:
    """The rule of what has no entry.

    >>> missing("Conv3D").refused
    'Conv3D has no int8 operator here; take Conv2D layers'
    """
    known = (instead for kinds, instead in _ALTERNATIVES.items() if kind in kinds.split())
    alternative = alternative or next(known, "build it of layers that udc_tf.check accepts")
    return refused(f"{kind} has no int8 operator here; {alternative}", kind)


_ALTERNATIVES = {
    "RNN": "take LSTM, GRU or SimpleRNN",
    "ConvLSTM1D ConvLSTM2D ConvLSTM3D": "take convolutions, and an LSTM behind them",
    "Conv3D Conv3DTranspose SeparableConv3D": "take Conv2D layers",
    "SpectralNormalization": "take the layer without it",
    "AdditiveAttention GroupQueryAttention": "take Attention or MultiHeadAttention",
    "Embedding ReversibleEmbedding": "give the network one-hot vectors, and take Dense",
    "Lambda": "take a layer or an operation of keras.ops",
    "Masking CategoryEncoding Discretization Hashing HashedCrossing IntegerLookup "
    "StringLookup TextVectorization MelSpectrogram STFTSpectrogram Resizing CenterCrop RandomCrop "
    "AutoContrast Equalization Solarization": "do it in front of the network",
    "MaxPooling3D AveragePooling3D GlobalMaxPooling3D GlobalAveragePooling3D ZeroPadding3D "
    "Cropping3D UpSampling3D SpatialDropout3D": "take layers for images",
    "AdaptiveAveragePooling1D AdaptiveMaxPooling1D AdaptiveAveragePooling2D AdaptiveMaxPooling2D":
        "take a pooling layer of fixed size",
    "Power": "multiply the tensor with itself, or take keras.ops.square",
    "Sqrt Exp Expm1 Log Log1p Log2 Log10 Sin Cos Erf Reciprocal Sign Floor Ceil Round":
        "take an activation that udc_tf.check accepts",
    "Any All NotEqual Equal Greater GreaterEqual Less LessEqual Where LogicalAnd LogicalNot "
    "LogicalOr": "take no masks or conditions, but relu, keras.ops.maximum or minimum",
    "Argmax Argmin TopK Sort Argsort": "leave it to the code behind the network",
    "LogSoftmax": "take softmax, or none and a loss with from_logits=True",
    "Cast": "leave it out, and give keras.Input the dtype that the network computes in",
    "Repeat Tile": "take UpSampling1D or UpSampling2D, RepeatVector or Concatenate",
    "Conv DepthwiseConv SeparableConv ConvTranspose": "take the layer of that name",
    "Einsum Tensordot Dot": "take EinsumDense, keras.ops.matmul or keras.ops.multiply",
    "Var Std Normalize": "take LayerNormalization or UnitNormalization",
    "Flip Roll Take TakeAlongAxis": "take slices, and join them with keras.ops.concatenate",
}  # fmt: skip
