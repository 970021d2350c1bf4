"""Which parts of a compression are at work."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class CompressSettings:
    """How `udc_tf.compress` goes about it. Each part can be switched off, to see what it is worth.

    Attributes:
        measured: whether each layer's effect is measured at the network's outputs; else it is only
            estimated from the layer's own error and the gradients of its outputs.
        put_back_norms: whether a convolution without a batch norm gets one, so that each of its
            channels can have a step of its own.
        reconstruct: whether weights are pruned and rounded for the layer's outputs; else the
            largest stay, each at its nearest level.
        sweeps: how often every weight is reconsidered after that.
        follow: whether a layer makes good what the layers before it changed.
        corrections: whether biases and batch norms are corrected for what rounding changes.
        fitted_ranges: whether activation ranges are those of least error; else all values fit.
        steps: of gradient descent on the examples, by which the outputs of the whole network are
            brought nearer to the original's, without labels; 0: none; None: 500 to 3,000, more for
            a network with fewer multiplications.
        examples: at most so many are used.
        probe_examples: with so many of them, effects are measured at the network's outputs.
    """

    measured: bool = True
    put_back_norms: bool = True
    reconstruct: bool = True
    sweeps: int = 3
    follow: bool = True
    corrections: bool = True
    fitted_ranges: bool = True
    steps: int | None = None
    examples: int = 512
    probe_examples: int = 128

    def __post_init__(self) -> None:
        for name, least in (("sweeps", 0), ("steps", 0), ("examples", 8), ("probe_examples", 1)):
            value = getattr(self, name)
            if name == "steps" and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(
                    f"`{name}` must be a whole number, at least {least}. Received: {value!r}"
                )
