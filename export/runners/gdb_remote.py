"""A client for a gdb stub: enough of the remote protocol to stop, look, change and go on."""

from __future__ import annotations

import dataclasses
import re
import socket
import struct
import time

from udc_tf.export.runners.base import RunFailedError

_PACKET_BYTES = 1024  # memory moved by one packet; hex doubles it, and stubs take 4096
_REPLY_LIMIT = 1 << 20
_WATCHED = re.compile(rb"watch:([0-9a-fA-F]+)")


@dataclasses.dataclass(frozen=True)
class Stop:
    """Why the guest stands still.

    Attributes:
        counter: its program counter.
        written: address of a watched word that it has just written, or None.
    """

    counter: int
    written: int | None = None


class GdbRemote:
    """One connection to a gdb stub on a Unix socket.

    Args:
        path: the socket.
        deadline: value of `time.monotonic()` after which every wait fails.
    """

    def __init__(self, path: str, deadline: float):
        self._deadline = deadline
        self._buffer = b""
        self._stopped_at: int | None = None
        self._breakpoints: set[int] = set()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            while True:
                try:
                    self._socket.connect(path)
                    break
                except (FileNotFoundError, ConnectionRefusedError):
                    if time.monotonic() > deadline:
                        raise RunFailedError("the simulator opened no debug socket") from None
                    time.sleep(0.02)
        except BaseException:
            self._socket.close()
            raise

    def close(self) -> None:
        """Ends the connection."""
        self._socket.close()

    def release(self) -> None:
        """Takes the debugger away: the guest runs on, and stops nowhere."""
        self._must("D")

    def read(self, address: int, count: int) -> bytes:
        """Guest memory."""
        out = bytearray()
        while len(out) < count:
            size = min(_PACKET_BYTES, count - len(out))
            reply = self._ask(f"m{address + len(out):x},{size:x}")
            part = _unhex(reply)
            if len(part) != size:
                raise RunFailedError(
                    f"no memory at {address + len(out):#x} of the guest: {reply[:16]!r}"
                )
            out += part
        return bytes(out)

    def write(self, address: int, data: bytes) -> None:
        """Changes guest memory."""
        for at in range(0, len(data), _PACKET_BYTES):
            part = data[at : at + _PACKET_BYTES]
            self._must(f"M{address + at:x},{len(part):x}:{part.hex()}")

    def read_word(self, address: int) -> int:
        """One 32-bit word."""
        return int.from_bytes(self.read(address, 4), "little")

    def write_word(self, address: int, value: int) -> None:
        """Changes one 32-bit word."""
        self.write(address, value.to_bytes(4, "little"))

    def registers(self) -> tuple[int, ...]:
        """The core registers: 0 to 12, 13 SP, 14 LR, 15 PC."""
        # All registers at once: stubs answer a request for one only after exchanging XML.
        values = _unhex(self._ask("g"))
        if len(values) < 64:
            raise RunFailedError("the simulator does not show its core registers")
        return struct.unpack_from("<16I", values)

    def set_register(self, number: int, value: int) -> None:
        """Changes a core register."""
        values = list(self.registers())
        values[number] = value
        self._must(f"G{struct.pack('<16I', *values).hex()}")

    def breakpoint(self, address: int) -> None:
        """Stops the guest whenever it comes to `address`."""
        self._must(f"Z0,{address:x},2")
        self._breakpoints.add(address)

    def watch(self, address: int) -> None:
        """Stops the guest whenever it has written the word at `address`."""
        self._must(f"Z2,{address:x},4")

    def resume(self) -> Stop:
        """Lets the guest run to the next breakpoint or watched word."""
        if self._stopped_at in self._breakpoints:
            # A stub stops again where it stands: step over that breakpoint first.
            self._step_without(f"0,{self._stopped_at:x},2")
        reply = self._go("c")
        written = _WATCHED.search(reply)
        if written is None:
            self._stopped_at = self.registers()[15]
            return Stop(self._stopped_at)
        # On Arm a stub stops before the guest writes: let it.
        address = int(written[1], 16)
        self._step_without(f"2,{address:x},4")
        self._stopped_at = None
        return Stop(self.registers()[15], address)

    def _step_without(self, point: str) -> None:
        self._must(f"z{point}")
        self._go("s")
        self._must(f"Z{point}")

    def _must(self, text: str) -> None:
        reply = self._ask(text)
        if reply != b"OK":
            raise RunFailedError(f"the simulator refuses {text[:32]!r}: {reply!r}")

    def _go(self, text: str) -> bytes:
        reply = self._ask(text)
        if reply[:1] not in (b"T", b"S"):
            raise RunFailedError(f"the guest did not stop at a breakpoint: {reply[:64]!r}")
        return reply

    def _ask(self, text: str) -> bytes:
        body = text.encode()
        self._socket.settimeout(self._left())
        try:
            self._socket.sendall(b"$" + body + b"#" + f"{sum(body) & 255:02x}".encode())
            return self._reply()
        except TimeoutError:
            raise RunFailedError("the guest did not answer in time") from None
        except OSError as error:
            raise RunFailedError(f"the debug connection broke: {error}") from None

    def _reply(self) -> bytes:
        while True:
            start = self._buffer.find(b"$")
            end = self._buffer.find(b"#", start + 1)
            if start >= 0 and end >= 0 and len(self._buffer) >= end + 3:
                body = self._buffer[start + 1 : end]
                self._buffer = self._buffer[end + 3 :]
                self._socket.sendall(b"+")
                return body
            self._socket.settimeout(self._left())
            part = self._socket.recv(65536)
            if not part or len(self._buffer) > _REPLY_LIMIT:
                raise RunFailedError("the simulator closed the debug connection")
            self._buffer += part

    def _left(self) -> float:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise RunFailedError("the guest did not finish in time")
        return left


def _unhex(reply: bytes) -> bytes:
    try:
        return bytes.fromhex(reply.decode("ascii"))
    except ValueError:
        return b""
