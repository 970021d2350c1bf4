"""Decodes the compressed weight streams of an Ethos-U55.

A stream is a row of slices. A slice codes its weights as palette indices in Golomb-Rice form and,
if it has zero runs, the number of zeros before each weight likewise. Both codes arrive in chunks
of a fixed number of unary bits, whose remainders follow one chunk later. Bits are taken least
significant first.

Only the unary bits depend on each other, so Python walks chunks and numpy fetches all remainders
of a slice at once. The decoder trusts nothing: it ends with a `WeightStreamError` on any stream.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from udc_tf.export.npu.faults import WeightStreamError

_END_OF_STREAM = 7  # value of the zero-run divisor that ends a stream
_NO_ZERO_RUNS = 6
_UNCOMPRESSED = 7  # value of the weight divisor: indices are stored plainly
_CHUNK = 12  # unary bits per chunk
_BALANCE = 8  # weights may run this far ahead of zero runs


class _BitReader:
    """Random access to bits of a byte string; reading past the end is an error."""

    def __init__(self, data: bytes):
        self.position = 0
        self.end = 8 * len(data)
        padded = data + bytes(12 + -len(data) % 4)
        words = np.frombuffer(padded, "<u4").astype(np.uint64)
        self._windows = words[:-1] | words[1:] << np.uint64(32)
        self._list = self._windows.tolist()  # Python ints: three times faster to index singly

    def take(self, count: int) -> int:
        """The next `count` bits (at most 32) as a number."""
        at = self.position
        self.position = at + count
        if self.position > self.end:
            raise WeightStreamError(f"the weight stream ends inside a slice, at bit {self.end}")
        return self._list[at >> 5] >> (at & 31) & ((1 << count) - 1)

    def gather(self, positions: np.ndarray, count: int) -> np.ndarray:
        """The `count` bits at each of `positions`."""
        shifted = self._windows[positions >> 5] >> (positions & 31).astype(np.uint64)
        return (shifted & np.uint64((1 << count) - 1)).astype(np.int64)

    def align(self) -> None:
        """Moves to the next byte boundary."""
        self.position = self.position + 7 & ~7


@dataclasses.dataclass
class _Palette:
    direct_offset: int = 0
    values: np.ndarray = dataclasses.field(default_factory=lambda: np.empty(0, np.int64))
    bits: int = 2

    def weights(self, indices: np.ndarray) -> np.ndarray:
        """Indices to signed weights: through the palette, beyond it directly."""
        size = len(self.values)
        codes = indices - size + self.direct_offset
        if size:
            inside = indices < size
            codes[inside] = self.values[indices[inside]]
        return np.where(codes & 1, -(codes >> 1), codes >> 1)

    @property
    def index_bits(self) -> int:
        """Bits of a plainly stored index."""
        return max(len(self.values) - 1, 0).bit_length() if len(self.values) else self.bits


class _Symbols:
    """The Golomb-Rice symbols of one kind (weights or zero runs) of one slice, as they arrive."""

    def __init__(self, total: int, divisor: int):
        self.total = total
        self.divisor = divisor
        self.carry = 0  # quotient begun in an earlier chunk
        self.pending = 0  # symbols of the last chunk whose remainders are still to come
        self.count = 0
        self._quotients: list[int] = []
        self._starts: list[int] = []
        self._counts: list[int] = []

    def add(self, quotients: tuple[int, ...], rest: int) -> None:
        """Takes a chunk's completed quotients and what it leaves of an unfinished one."""
        quotients = quotients[: self.total - self.count]
        if quotients:
            self._quotients.append(quotients[0] + self.carry)
            self._quotients.extend(quotients[1:])
            self.carry = rest
        else:
            self.carry += rest
        self.count += len(quotients)
        self.pending = len(quotients)

    def skip_remainders(self, bits: _BitReader, pending: int) -> None:
        """Notes where the remainders of `pending` symbols lie and moves over them."""
        if pending:
            self._starts.append(bits.position)
            self._counts.append(pending)
            bits.position += pending * self.divisor
            if bits.position > bits.end:
                raise WeightStreamError(f"the weight stream ends inside a slice, at bit {bits.end}")

    def values(self, bits: _BitReader) -> np.ndarray:
        """All symbols: quotient times 2^divisor plus remainder."""
        quotients = np.array(self._quotients, np.int64)
        if not self.divisor or not self._starts:
            return quotients
        counts = np.array(self._counts)
        first = np.repeat(np.cumsum(counts) - counts, counts)
        within = np.arange(len(first)) - first
        positions = np.repeat(np.array(self._starts), counts) + within * self.divisor
        return (quotients << self.divisor) + bits.gather(positions, self.divisor)


@functools.lru_cache(maxsize=1 << 15)
def _weight_quotients(unary: int, extra: int, truncated: bool) -> tuple[tuple[int, ...], int]:
    """Quotients in a weight chunk: a zero bit ends a symbol; a set bit has an extra bit, which
    is 0 for "one more and done", 1 for "two more" (and done, if the code is truncated)."""
    done: list[int] = []
    quotient = 0
    for bit in range(_CHUNK):
        if unary >> bit & 1:
            more = extra & 1
            extra >>= 1
            quotient += 1 + more
            if more and not truncated:
                continue
        done.append(quotient)
        quotient = 0
    return tuple(done), quotient


@functools.lru_cache(maxsize=1 << 13)
def _zero_quotients(unary: int, width: int) -> tuple[tuple[int, ...], int]:
    """Quotients in a zero-run chunk: plain unary, a zero bit ends a symbol."""
    done: list[int] = []
    quotient = 0
    for bit in range(width):
        if unary >> bit & 1:
            quotient += 1
        else:
            done.append(quotient)
            quotient = 0
    return tuple(done), quotient


def decode(data: bytes, expected: int) -> np.ndarray:
    """Decodes one weight stream.

    Args:
        data: the stream, as WEIGHT_BASE and WEIGHT_LENGTH delimit it.
        expected: the number of weights the operator consumes, padding included.

    Returns:
        int16 array of exactly `expected` weights in stream order.

    Raises:
        WeightStreamError: the stream is damaged or holds another number of weights.
    """
    bits = _BitReader(data)
    palette = _Palette()
    parts: list[np.ndarray] = []
    count = 0
    while bits.position + 3 <= bits.end:
        zero_divisor = bits.take(3)
        if zero_divisor == _END_OF_STREAM:
            bits.align()
            continue
        part, palette = _slice(bits, zero_divisor, palette, expected - count)
        parts.append(part)
        count += len(part)
    if count != expected:
        raise WeightStreamError(
            f"the weight stream should hold {expected} weights. Received: {count}"
        )
    return np.concatenate(parts) if parts else np.empty(0, np.int16)


def _slice(
    bits: _BitReader, zero_divisor: int, palette: _Palette, limit: int
) -> tuple[np.ndarray, _Palette]:
    length = bits.take(15) + 1
    weight_divisor = bits.take(3)
    truncated = bool(bits.take(1))
    new_palette = bits.take(1)
    if new_palette:
        palette = _read_palette(bits)
    zero_runs = zero_divisor != _NO_ZERO_RUNS
    if length > limit:
        raise WeightStreamError(f"a slice of {length} weights where {limit} are left to come")
    plain = weight_divisor == _UNCOMPRESSED
    weights = _Symbols(length, palette.index_bits if plain else weight_divisor)
    # A zero run follows each weight; only a slice with its own palette has one in front as well.
    zeros = _Symbols(length + new_palette if zero_runs else 0, zero_divisor)
    _walk(bits, weights, zeros, plain, truncated)
    values = palette.weights(weights.values(bits))
    if np.abs(values).max(initial=0) > 255:
        raise WeightStreamError(f"a weight of magnitude {np.abs(values).max()}; at most 255")
    if not zero_runs:
        return values.astype(np.int16), palette
    runs = zeros.values(bits)
    total = length + int(runs.sum())
    if total > limit:
        raise WeightStreamError(f"a slice of {total} weights where {limit} are left to come")
    out = np.zeros(total, np.int16)
    before = runs[:-1] if new_palette else np.concatenate([[0], runs[:-1]])
    out[np.cumsum(before + 1) - 1] = values
    return out, palette


def _walk(
    bits: _BitReader, weights: _Symbols, zeros: _Symbols, plain: bool, truncated: bool
) -> None:
    """Walks the chunks of a slice: unary bits now, the remainders of the chunk before after."""
    zero_width = 8 if zeros.divisor == 3 else _CHUNK
    # Plain indices wider than 5 bits come 8 at a time so that a chunk's remainders fit a fetch.
    plain_symbols = (0,) * (8 if plain and weights.divisor > 5 else _CHUNK)
    while weights.count < weights.total or zeros.count < zeros.total:
        balance = weights.count - zeros.count if zeros.total else 0
        weights_due = weights.count < weights.total and balance < _BALANCE
        zeros_due = zeros.count < zeros.total and balance >= 0
        weights_before, zeros_before = weights.pending, zeros.pending
        weights.pending = zeros.pending = 0
        if not weights_due and not zeros_due:
            raise WeightStreamError("weights and zero runs of a slice wait for each other")
        # In the stream: weight unary bits, zero-run unary bits, extra bits of the weights.
        weight_unary = bits.take(_CHUNK) if weights_due and not plain else 0
        if zeros_due:
            zeros.add(*_zero_quotients(bits.take(zero_width), zero_width))
        if weights_due and plain:
            weights.add(plain_symbols, 0)
        elif weights_due:
            extra = bits.take(weight_unary.bit_count())
            weights.add(*_weight_quotients(weight_unary, extra, truncated))
        weights.skip_remainders(bits, weights_before)
        zeros.skip_remainders(bits, zeros_before)
    weights.skip_remainders(bits, weights.pending)
    zeros.skip_remainders(bits, zeros.pending)


def _read_palette(bits: _BitReader) -> _Palette:
    direct_offset = bits.take(5)
    size = bits.take(5)
    size += size > 0
    width = bits.take(3) + 2
    values = np.array([bits.take(width) for _ in range(size)], np.int64)
    return _Palette(direct_offset, values, width)
