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
    alternative = alternative or next(known, "build it of other layers")
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
}  # fmt: skip
