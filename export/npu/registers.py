"""The NPU's registers, and the typed views of them that an operation starts from."""

from __future__ import annotations

import dataclasses

import numpy as np

from udc_tf.export.npu.command_words import Command, Position
from udc_tf.export.npu.faults import CommandError
from udc_tf.export.npu.memory import FeatureMap, Region

_IFM_DTYPES = {0: "u1", 1: "i1", 4: "<u2", 5: "<i2", 9: "<i4"}
_OFM_DTYPES = {0: "u1", 1: "i1", 2: "<u2", 3: "<i2", 5: "<i4"}
_ADDRESS_BITS = 40
_SCALES = ("OFM_SCALE", "OPA_SCALE", "OPB_SCALE")


@dataclasses.dataclass(frozen=True)
class Kernel:
    """The window of a convolution or pooling; sizes are undilated."""

    size: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    part_kernel: bool
    padding: tuple[int, int, int, int]  # top, left, bottom, right
    upscale: int  # 0 none, 1 nearest, 2 zero insertion

    @property
    def reach(self) -> tuple[int, int]:
        """Dilated height and width."""
        return (
            (self.size[0] - 1) * self.dilation[0] + 1,
            (self.size[1] - 1) * self.dilation[1] + 1,
        )

    def covered(self, ofm_shape: tuple[int, int, int]) -> tuple[int, int]:
        """Height and width the kernel moves over, padding included, for an output."""
        return (
            (ofm_shape[0] - 1) * self.stride[0] + self.reach[0],
            (ofm_shape[1] - 1) * self.stride[1] + self.reach[1],
        )


@dataclasses.dataclass(frozen=True)
class Activation:
    """What happens to a value after scaling: bounds and perhaps a look-up table."""

    low: int
    high: int
    clip: str | None  # element type a clip is forced to, or None
    table: int | None  # look-up table number, or None


class Registers:
    """Register contents; reading one that no command has set is an error.

    Example:
        >>> from udc_tf.export.npu.command_words import Command, Position
        >>> registers = Registers([])
        >>> registers.write(Command(Position(0, 0, "IFM_DEPTH_M1"), "IFM_DEPTH_M1", 2, None))
        >>> registers.take("IFM_DEPTH_M1")
        2
    """

    def __init__(self, regions: list[Region | None]):
        self._values: dict[str, int] = {}
        self._shifts: dict[str, int] = {}
        self._regions = regions
        self._at: Position | None = None

    def write(self, command: Command) -> None:
        """Executes a command that sets a register."""
        if command.payload is None:
            self._values[command.name] = command.param
        elif command.name in _SCALES:
            self._values[command.name] = command.payload
            self._shifts[command.name] = command.param
        else:
            self._values[command.name] = command.payload | command.param << 32

    def begin(self, position: Position) -> None:
        """Names the operation that reads next, for messages."""
        self._at = position

    def fail(self, reason: str) -> CommandError:
        """The error of an operation whose registers make no sense."""
        return CommandError(f"{self._at}: {reason}")

    def take(self, name: str) -> int:
        """The unsigned value of a register."""
        try:
            return self._values[name]
        except KeyError:
            raise self.fail(f"needs register {name}, which no command has set") from None

    def signed(self, name: str) -> int:
        """The value of a 16-bit register as a signed number."""
        value = self.take(name)
        return value - (1 << 16) if value & 0x8000 else value

    def size(self, name: str) -> int:
        """The value of a register that holds a size minus one."""
        return self.take(f"{name}_M1") + 1

    def block(self) -> tuple[int, int, int]:
        """Height, width and depth of the OFM's blocks, which results do not depend on.

        They only say how long an operation takes; unset they are as after a reset.
        """
        axes = ("HEIGHT", "WIDTH", "DEPTH")
        height, width, depth = (self._values.get(f"OFM_BLK_{axis}_M1", 0) + 1 for axis in axes)
        return height, width, depth

    def address(self, name: str) -> int:
        """An address or length: unsigned, 40 bits."""
        value = self.take(name)
        if value >> _ADDRESS_BITS:
            raise self.fail(f"{name} has more than {_ADDRESS_BITS} bits. Received: {value:#x}")
        return value

    def stride(self, name: str) -> int:
        """A stride: signed, 40 bits."""
        value = self.address(name)
        return value - (1 << _ADDRESS_BITS) if value >> (_ADDRESS_BITS - 1) else value

    def scale(self, name: str) -> tuple[int, int]:
        """Multiplier and shift of a scale register."""
        value, shift = self.take(name), self._shifts[name]
        if shift > 63:
            raise self.fail(f"{name} may shift by at most 63. Received: {shift}")
        return value, shift

    def region(self, name: str) -> Region:
        """The region a region register names."""
        number = self.take(name)
        region = self._regions[number] if number < len(self._regions) else None
        if region is None:
            raise self.fail(f"{name} names region {number}, which this network does not have")
        return region

    def ofm(self) -> FeatureMap:
        """The output feature map."""
        if not self.region("OFM_REGION").writable:
            raise self.fail("writes to flash, which is read-only")
        shape = (self.size("OFM_HEIGHT"), self.size("OFM_WIDTH"), self.size("OFM_DEPTH"))
        precision = self.take("OFM_PRECISION")
        return self._feature_map("OFM", shape, precision, _OFM_DTYPES.get(precision & 7))

    def ifm(self, shape: tuple[int, int, int]) -> FeatureMap:
        """The input feature map, whose height and width the operation knows."""
        precision = self.take("IFM_PRECISION")
        return self._feature_map("IFM", shape, precision, _IFM_DTYPES.get(precision & 15))

    def ifm2(self, shape: tuple[int, int, int]) -> FeatureMap:
        """The second input feature map."""
        precision = self.take("IFM2_PRECISION")
        return self._feature_map("IFM2", shape, precision, _IFM_DTYPES.get(precision & 15))

    def _feature_map(
        self, name: str, shape: tuple[int, int, int], precision: int, dtype: str | None
    ) -> FeatureMap:
        layout = precision >> 6 & 3
        if dtype is None or layout > 1:
            raise self.fail(f"{name}_PRECISION is none of an Ethos-U55. Received: {precision:#06x}")
        tile = (
            self.size(f"{name}_HEIGHT0"),
            self.size(f"{name}_HEIGHT1"),
            self.size(f"{name}_WIDTH0"),
        )
        wide, high = shape[1] > tile[2], shape[0] > tile[0]
        used = (True, wide, high, wide and shape[0] > tile[1])
        zero_point = self.take(f"{name}_ZERO_POINT")
        region = self.region(f"{name}_REGION")
        base = [self.address(f"{name}_BASE{i}") if used[i] else 0 for i in range(4)]
        rows, columns, channels = (self.stride(f"{name}_STRIDE_{axis}") for axis in "YXC")
        unsigned = dtype in ("u1", "<u2")
        feature_map = FeatureMap(
            name=name,
            region=region,
            shape=shape,
            dtype=np.dtype(dtype),
            brick=layout == 1,
            bases=(base[0], base[1], base[2], base[3]),
            tile=tile,
            strides=(rows, columns, channels),
            zero_point=zero_point if unsigned else self.signed(f"{name}_ZERO_POINT"),
        )
        feature_map.check_inside()
        if feature_map.nbytes > feature_map.region.size:  # zero strides: unbounded work
            raise self.fail(
                f"{name} of shape {shape} has {feature_map.nbytes} bytes, more than the "
                f"{feature_map.region.size} of {feature_map.region.name}"
            )
        return feature_map

    def kernel(self, limits: tuple[int, int]) -> Kernel:
        """The kernel; `limits` are the largest dilated height and the largest area."""
        bits = self.take("KERNEL_STRIDE")
        stride = (
            1 + (bits >> 1 & 1) + 2 * (bits >> 9 & 1),
            1 + (bits & 1) + 2 * (bits >> 6 & 1),
        )
        dilation = (1 + (bits >> 4 & 1), 1 + (bits >> 3 & 1))
        if bits & ~0x25F:
            raise self.fail(f"KERNEL_STRIDE has unknown bits. Received: {bits:#06x}")
        reach = (self.size("KERNEL_HEIGHT"), self.size("KERNEL_WIDTH"))
        if reach[0] > limits[0] or reach[0] * reach[1] > limits[1]:
            raise self.fail(
                f"a kernel may be {limits[0]} high and have {limits[1]} elements. Received: {reach}"
            )
        if any((r - 1) % d for r, d in zip(reach, dilation, strict=True)):
            raise self.fail(f"no kernel dilated by {dilation} has size {reach}")
        upscale = self.take("IFM_UPSCALE")
        if upscale > 2:
            raise self.fail(f"IFM_UPSCALE is 0, 1 or 2. Received: {upscale}")
        sides = ("TOP", "LEFT", "BOTTOM", "RIGHT")
        top, left, bottom, right = padding = tuple(self.take(f"IFM_PAD_{s}") for s in sides)
        if max(padding) > 127:
            raise self.fail(f"padding may be 127 at most. Received: {padding}")
        height, width = ((r - 1) // d + 1 for r, d in zip(reach, dilation, strict=True))
        around = (top, left, bottom, right)
        return Kernel((height, width), stride, dilation, bool(bits & 4), around, upscale)

    def window(self, ofm: FeatureMap, kernel: Kernel) -> tuple[int, int]:
        """Height and width of the input, before padding and after upscaling."""
        height, width = kernel.covered(ofm.shape)
        height -= kernel.padding[0] + kernel.padding[2]
        width -= kernel.padding[1] + kernel.padding[3]
        if height < 1 or width < 1:
            raise self.fail(
                f"an OFM of {ofm.shape} with kernel {kernel} leaves an IFM of {height} x {width}"
            )
        return height, width

    def activation(self, ofm: FeatureMap) -> Activation:
        """Clamping and look-up table."""
        bits = self.take("ACTIVATION")
        function, clip = bits & 0xFFF, bits >> 12
        if function and not 16 <= function <= 23:
            raise self.fail(
                "ACTIVATION should be none or a look-up table (16 to 23): TANH and SIGMOID are "
                f"not executed. Received: {function}"
            )
        if clip not in (0, 2, 3, 5):
            raise self.fail(f"ACTIVATION clips to 0, 2, 3 or 5. Received: {clip}")
        forced = {0: None, 2: "u1", 3: "i1", 5: "<i2"}[clip]
        unsigned = (forced or ofm.dtype.str.lstrip("|")) in ("u1", "<u2")
        read = self.take if unsigned else self.signed
        return Activation(
            low=read("ACTIVATION_MIN"),
            high=read("ACTIVATION_MAX"),
            clip=forced,
            table=function - 16 if function else None,
        )
