"""Damages compiled networks in reproducible ways, and runs what is left of them under guard."""

from __future__ import annotations

import numpy as np

from udc_tf.export.npu import NpuError, NpuNetwork

_GUARD = 4096
_GUARD_BYTE = 0xA5
# A tenth of the default: the tests' networks need far less, and 2,000 files are to be run.
WORK_LIMIT = 2 * 10**10


def damaged(seed: int, files: list[bytes]) -> tuple[str, bytes]:
    """A damaged copy of one of `files`, and what was done to it."""
    rng = np.random.default_rng(seed)
    data = bytearray(files[seed % len(files)])
    kind = ("flip", "flip in commands", "truncate", "splice", "splice commands", "words")[seed % 6]
    start, end = _command_range(bytes(data))
    if kind == "flip":
        _flip(data, rng, 0, len(data))
    elif kind == "flip in commands":
        _flip(data, rng, start, end)
    elif kind == "truncate":
        del data[int(rng.integers(0, len(data))) :]
    elif kind == "splice":
        other = files[int(rng.integers(len(files)))]
        size = int(rng.integers(1, 2000))
        source, target = (int(rng.integers(0, len(d) - 1)) for d in (other, data))
        part = other[source : source + min(size, len(data) - target)]
        data[target : target + len(part)] = part
    elif kind == "splice commands":
        # Whole words from one place of the stream to another: commands stay commands.
        words = int(rng.integers(1, 40))
        source, target = (start + 4 * int(n) for n in rng.integers(0, (end - start) // 4, 2))
        part = data[source : min(source + 4 * words, end)]
        part = part[: end - target]
        data[target : target + len(part)] = part
    else:
        for _ in range(int(rng.integers(1, 4))):
            at = start + 4 * int(rng.integers(0, (end - start) // 4))
            extreme = rng.choice([0, 0xFFFFFFFF, 0x7FFFFFFF, 0xFFFF0000, rng.integers(1 << 32)])
            data[at : at + 4] = int(extreme).to_bytes(4, "little")
    return kind, bytes(data)


def _flip(data: bytearray, rng: np.random.Generator, start: int, end: int) -> None:
    for _ in range(int(rng.integers(1, 9))):
        data[int(rng.integers(start, end))] ^= 1 << int(rng.integers(8))


def _command_range(data: bytes) -> tuple[int, int]:
    words = NpuNetwork(data).container.npu_operators[0].words.tobytes()
    start = data.index(words)
    return start, start + len(words)


class GuardedNetwork(NpuNetwork):
    """A network whose memory has a fence on either side."""

    def _new_stores(self, batch):
        stores = super()._new_stores(batch)
        self.fences = []
        self.constants = []
        for name, store in stores.items():
            if not store.flags.writeable:
                self.constants.append((store, store.tobytes()))
                continue
            fenced = np.full((1, store.shape[1] + 2 * _GUARD), _GUARD_BYTE, np.uint8)
            fenced[:, _GUARD:-_GUARD] = 0
            stores[name] = fenced[:, _GUARD:-_GUARD]
            self.fences.append(fenced)
        return stores

    def check_fences(self) -> None:
        """Raises if anything outside the arena has changed."""
        for fenced in getattr(self, "fences", ()):
            outside = np.concatenate([fenced[:, :_GUARD], fenced[:, -_GUARD:]])
            if not (outside == _GUARD_BYTE).all():
                raise AssertionError("bytes outside the arena were written")
        for store, before in getattr(self, "constants", ()):
            if store.tobytes() != before:
                raise AssertionError("constant bytes were written")


def attempt(data: bytes) -> str:
    """Loads and runs `data`: "ran", or the class of the `NpuError` it ends with."""
    try:
        network = GuardedNetwork(data, work_limit=WORK_LIMIT)
    except NpuError as error:
        return type(error).__name__
    inputs = [
        np.zeros((1, *(info.shape[1:] if info.shape[:1] == (1,) else info.shape)), info.dtype)
        for info in network.inputs
    ]
    try:
        network.run(inputs)
    except NpuError as error:
        return type(error).__name__
    finally:
        network.check_fences()
    return "ran"
