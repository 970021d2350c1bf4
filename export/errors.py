"""What can go wrong on the way to flash, each kind with its own class.

Every one is an `ExportError`: a caller that only wants "no artefact" catches that.
"""


class ExportError(RuntimeError):
    """The network was not exported; nothing was left under a final name."""


class CalibrationError(ExportError):
    """The calibration data do not suit the network, or there are none and some are needed."""


class ConversionError(ExportError):
    """The .tflite does not hold the network's own integers, or cannot be made at all."""


class MismatchError(ExportError):
    """The exported network does not compute what the Keras model does; names the first layer."""


class DamagedModelError(ExportError):
    """A file is not the TFLite model it should be."""


class VelaError(ExportError):
    """Vela is missing or refused the network; the message carries its own words."""


class CpuOperatorsError(ExportError):
    """Vela left operators to the CPU and the caller did not allow that."""


class BudgetError(ExportError):
    """The compiled network does not fit; the message says need, have and excess."""
