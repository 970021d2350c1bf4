"""What can go wrong with a compiled network, each kind with its own class.

Every one is an `NpuError`, so a caller that only wants "this file does not run" catches that.
"""


class NpuError(ValueError):
    """A compiled network cannot be executed; the message says where and why."""


class ContainerError(NpuError):
    """The flatbuffer around the command stream is damaged or is not a Vela output."""


class CommandError(NpuError):
    """A command is unknown, malformed, or asks for what an Ethos-U55 does not have."""


class MemoryAccessError(NpuError):
    """A command touches bytes outside its region, or bytes another access still owns."""


class WeightStreamError(NpuError):
    """A compressed weight stream does not decode to the weights its operator needs."""


class AccumulatorOverflowError(NpuError):
    """A sum or product leaves the register that would hold it on the device."""


class WorkLimitError(NpuError):
    """The stream asks for more memory or arithmetic than the caller allows."""


class UnsupportedOperatorError(NpuError):
    """The graph holds an operator outside the NPU that the executor cannot run."""


class UnsupportedAcceleratorError(NpuError):
    """The network is compiled for an NPU whose commands the executor does not know."""
