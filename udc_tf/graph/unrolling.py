"""Layers over time, written out step by step as ordinary layers.

The NPU has no loops, and TFLite's one operator for an LSTM keeps its state from one inference to
the next and takes from the NPU functions whose rounding is not published. So a recurrent layer of
known length becomes its steps: one kernel per gate for all inputs at once, one per gate for the
state, which the steps share, and sigmoids, products and sums, all of which TFLM and the NPU compute
alike, bit for bit. `trace` puts them in the layer's place, so that everything else, from channel
groups to export, sees ordinary layers.
"""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import layers as kl

MOST_STEPS = 64
_SEQUENCE = 3  # axes
_RECURRENT = (kl.LSTM, kl.GRU, kl.SimpleRNN)
KINDS = (*_RECURRENT, kl.Bidirectional, kl.TimeDistributed)
# What does the same to every position, whatever the axes in front of the channels.
_BY_POSITION = (
    *(kl.Dense, kl.Activation, kl.ReLU, kl.LeakyReLU, kl.ELU, kl.BatchNormalization),
    *(kl.Rescaling, kl.Dropout, kl.Identity),
)


def refusal(layer: Any, shape: Sequence[int | None]) -> str | None:
    """Why a layer over time cannot be written out; None if it can.

    Args:
        layer: one of `KINDS`.
        shape: of its input, with the batch.

    >>> refusal(kl.LSTM(4, stateful=True), (1, 8, 3))
    '`stateful` has no int8 form here; leave it out and give the network the whole sequence'
    """
    if isinstance(layer, kl.TimeDistributed):
        return _refused_length(layer, shape)
    if isinstance(layer, kl.Bidirectional):
        if layer.merge_mode is None:
            return "its two outputs are not merged; take merge_mode='concat'"
        inner = (layer.forward_layer, layer.backward_layer)
        return next(filter(None, (refusal(one, shape) for one in inner)), None)
    if type(layer) not in _RECURRENT:
        return f"{type(layer).__name__} is not written out; take LSTM, GRU or SimpleRNN themselves"
    if layer.stateful:
        why = "`stateful` has no int8 form here; leave it out and give the network the whole"
        return f"{why} sequence"
    if layer.return_state:
        return "`return_state` has no int8 form here; take return_sequences=True"
    if layer.recurrent_dropout:
        return "`recurrent_dropout` is not kept in a search; take `dropout`"
    return _refused_length(layer, shape)


def _refused_length(layer: Any, shape: Sequence[int | None]) -> str | None:
    if len(shape) < _SEQUENCE or None in shape[1:]:
        return "its number of steps must be known; give keras.Input every size but the batch"
    steps = shape[1] or 0
    if steps > MOST_STEPS and not _is_one_call(layer):
        why = f"its {steps} steps would each be operators of their own, at most {MOST_STEPS} may"
        return f"{why}; shorten the sequence with strides or pooling in front of it"
    return None


class Unrolled:
    """A built layer over time as ordinary layers, which all its steps and calls share.

    Example:

    >>> x = keras.Input((5, 3))
    >>> layer = kl.SimpleRNN(2)
    >>> y = layer(x)
    >>> network = Unrolled(layer, "rnn").network(x.shape)
    >>> len([inner for inner in network.layers if isinstance(inner, kl.Dense)]), y.shape
    (2, (None, 2))

    Args:
        layer: one of `KINDS`.
        name: under which it is known; the names of its parts begin with it.
    """

    def __init__(self, layer: Any, name: str):
        prefix = f"{name.replace('/', '_')}_"  # which Keras does not take in a name
        self._call: Any
        if isinstance(layer, kl.TimeDistributed):
            self._call = _TimeDistributed(layer, prefix)
        elif isinstance(layer, kl.Bidirectional):
            self._call = _Bidirectional(layer, prefix)
        else:
            self._call = _unrolled(layer, prefix)

    @property
    def ranges(self) -> dict[str, str]:
        """Part -> the range that it shares with others, besides that of all its own calls."""
        return self._call.ranges

    def network(self, shape: Sequence[int | None]) -> keras.Model:
        """The layer's steps on an input of such a shape, with the batch."""
        inputs = keras.Input(batch_shape=tuple(shape))
        return keras.Model(inputs, self._call(inputs))


def _unrolled(layer: Any, prefix: str) -> "_Recurrent":
    kind: type[_Recurrent] = {kl.LSTM: _Lstm, kl.GRU: _Gru, kl.SimpleRNN: _Simple}[type(layer)]
    return kind(layer, prefix)


class _Layers:
    """Ordinary layers by name, each made once."""

    def __init__(self, prefix: str, dtype: Any):
        self.prefix, self._dtype = prefix, dtype
        self._made: dict[str, Any] = {}

    def __call__(self, kind: Any, name: str, *args: Any, **settings: Any) -> Any:
        if name not in self._made:
            settings |= {"name": f"{self.prefix}{name}", "dtype": self._dtype}
            self._made[name] = kind(*args, **settings)
        return self._made[name]

    def __getitem__(self, name: str) -> Any:
        return self._made[name]

    def step(self, sequence: Any, step: int, steps: int) -> Any:
        """One step of a sequence, [batch, channels]."""
        return self(kl.Flatten, "step")(self.cropped(sequence, step, steps))

    def cropped(self, sequence: Any, step: int, steps: int) -> Any:
        """The rows of one step out of those of all."""
        rows = sequence.shape[1] // steps
        cut = step * rows, (steps - 1 - step) * rows
        name = f"step_{step}_of_{steps}"
        if len(sequence.shape) == _SEQUENCE:
            return self(kl.Cropping1D, name, cut)(sequence)
        return self(kl.Cropping2D, name, (cut, (0, 0)))(sequence)

    def stacked(self, steps: Sequence[Any]) -> Any:
        """Steps [batch, channels] as a sequence."""
        reshape = self(kl.Reshape, "as_step", (1, steps[0].shape[-1]))
        return self.joined([reshape(step) for step in steps])

    def joined(self, parts: Sequence[Any]) -> Any:
        return self(kl.Concatenate, "steps", axis=1)(parts) if len(parts) > 1 else parts[0]


class _Recurrent:
    """The steps of a recurrent layer."""

    gates: tuple[str, ...] = ()
    carried: tuple[str, ...] = ()  # parts that hold the same at different steps

    def __init__(self, layer: Any, prefix: str):
        self.layer = layer
        self.layers = _Layers(prefix, layer.dtype_policy)
        kernel, recurrent, *biases = (np.asarray(w) for w in layer.get_weights())
        count = len(self.gates)
        given, recalled = self._biases(biases[0] if biases else None)
        for n, gate in enumerate(self.gates):
            kernels = (np.split(weights, count, axis=1)[n] for weights in (kernel, recurrent))
            of_input, of_state = kernels
            self._dense(f"{gate}_kernel", "kernel", of_input, given.get(gate), gate)
            self._dense(f"{gate}_recurrent", "recurrent", of_state, recalled.get(gate), gate)

    @property
    def ranges(self) -> dict[str, str]:
        """What the gates are computed from has one range, so that they share tables."""
        sums = [f"{gate}_{part}" for gate in self.gates for part in ("kernel", "sum")]
        prefix = self.layers.prefix
        return {
            **{f"{prefix}{name}": f"{prefix}sums" for name in sums},
            **{f"{prefix}{name}": f"{prefix}carried" for name in self.carried},
        }

    def _biases(self, bias: np.ndarray | None) -> tuple[dict[str, Any], dict[str, Any]]:
        """The biases of the kernels of inputs and of those of the state, by gate."""
        if bias is None:
            return {}, {}
        return dict(zip(self.gates, np.split(bias, len(self.gates)), strict=True)), {}

    def _dense(
        self, name: str, role: str, kernel: np.ndarray, bias: np.ndarray | None, gate: str
    ) -> None:
        layer = self.layer
        forgets = gate == "forget" and getattr(layer, "unit_forget_bias", False)
        dense = self.layers(
            kl.Dense,
            name,
            kernel.shape[1],
            use_bias=bias is not None,
            kernel_initializer=_again(getattr(layer, f"{role}_initializer")),
            kernel_regularizer=getattr(layer, f"{role}_regularizer"),
            kernel_constraint=getattr(layer, f"{role}_constraint"),
            bias_initializer="ones" if forgets else _again(layer.bias_initializer),
            bias_regularizer=layer.bias_regularizer,
        )
        dense.build((None, kernel.shape[0]))
        dense.set_weights([kernel] if bias is None else [kernel, bias])

    def __call__(self, sequence: Any) -> Any:
        steps = self.outputs(sequence)
        return self.layers.stacked(steps) if self.layer.return_sequences else steps[-1]

    def outputs(self, sequence: Any) -> list[Any]:
        """The output of each step, in the order in which the layer goes through them."""
        if self.layer.dropout:
            # As the layer does: what is dropped is dropped in all steps.
            dropout = self.layers(kl.SpatialDropout1D, "dropout", self.layer.dropout)
            sequence = dropout(sequence)
        self._given = {g: self.layers[f"{g}_kernel"](sequence) for g in self.gates}
        times = range(sequence.shape[1])
        outputs: list[Any] = []
        state: Any = None
        for time in reversed(times) if self.layer.go_backwards else times:
            state = self._step(time, state)
            outputs.append(state[0])
        return outputs

    def _step(self, time: int, state: Any) -> tuple[Any, ...]:
        """The state after a step, its output first; the state before the first is None."""
        raise NotImplementedError

    def _input(self, gate: str, time: int) -> Any:
        given = self._given[gate]
        return self.layers.step(given, time, given.shape[1])

    def _recalled(self, gate: str, state: Any) -> Any:
        return self.layers[f"{gate}_recurrent"](state)

    def _gate(self, gate: str, time: int, state: Any, function: Any) -> Any:
        """A gate's value; before the first step the state is zero, and says nothing."""
        value = self._input(gate, time)
        if state is not None:
            both = [value, self._recalled(gate, state)]
            value = self.layers(kl.Add, f"{gate}_sum")(both)
        return self._activated(gate, value, function)

    def _activated(self, name: str, value: Any, function: Any) -> Any:
        if function is keras.activations.linear:
            return value
        return self.layers(kl.Activation, name, function)(value)

    def _product(self, name: str, *factors: Any) -> Any:
        return self.layers(kl.Multiply, name)(list(factors))


class _Simple(_Recurrent):
    gates = ("state",)

    def _step(self, time: int, state: Any) -> tuple[Any, ...]:
        before = None if state is None else state[0]
        return (self._gate("state", time, before, self.layer.activation),)


class _Lstm(_Recurrent):
    gates = ("input", "forget", "cell", "output")
    carried = ("news", "carry")

    def _step(self, time: int, state: Any) -> tuple[Any, ...]:
        hidden, carried = (None, None) if state is None else state
        layer = self.layer
        admitted = self._gate("input", time, hidden, layer.recurrent_activation)
        candidate = self._gate("cell", time, hidden, layer.activation)
        carry = self._product("news", admitted, candidate)
        if carried is not None:
            kept = self._gate("forget", time, hidden, layer.recurrent_activation)
            parts = [self._product("kept", kept, carried), carry]
            carry = self.layers(kl.Add, "carry")(parts)
        shown = self._gate("output", time, hidden, layer.recurrent_activation)
        squashed = self._activated("squashed", carry, layer.activation)
        return self._product("hidden", shown, squashed), carry


class _Gru(_Recurrent):
    gates = ("update", "reset", "candidate")

    def _biases(self, bias: np.ndarray | None) -> tuple[dict[str, Any], dict[str, Any]]:
        if bias is None or not self.layer.reset_after:
            return super()._biases(bias)
        given, recalled = (super(_Gru, self)._biases(row)[0] for row in bias)
        # Only the candidate's has something between the two sums.
        merged = {gate: given[gate] + recalled[gate] for gate in ("update", "reset")}
        return {**given, **merged}, {"candidate": recalled["candidate"]}

    def _step(self, time: int, state: Any) -> tuple[Any, ...]:
        layer = self.layer
        before = self._beginning(time) if state is None else state[0]
        update = self._gate("update", time, before, layer.recurrent_activation)
        candidate = self._candidate(time, before)
        # update * before + (1 - update) * candidate, without a number as operand.
        change = candidate
        if before is not None:
            change = self.layers(kl.Subtract, "change")([candidate, before])
        return (self._after([candidate, self._product("withheld", update, change)]),)

    def _after(self, terms: list[Any]) -> Any:
        return self.layers(kl.Subtract, "after")(terms)

    def _beginning(self, time: int) -> Any:
        """What stands for the state before the first step: zero, which a bias is added to."""
        if not (self.layer.reset_after and self.layer.use_bias):
            return None
        anything = self._input("update", time)
        return self._after([anything, anything])

    def _candidate(self, time: int, before: Any) -> Any:
        value = self._input("candidate", time)
        if before is not None:
            reset = self._gate("reset", time, before, self.layer.recurrent_activation)
            if self.layer.reset_after:
                recalled = self._product("shown", reset, self._recalled("candidate", before))
            else:
                recalled = self._recalled("candidate", self._product("shown", reset, before))
            value = self.layers(kl.Add, "candidate_sum")([value, recalled])
        return self._activated("candidate", value, self.layer.activation)


class _Bidirectional:
    def __init__(self, layer: kl.Bidirectional, prefix: str):
        self._layer = layer
        self._forward = _unrolled(layer.forward_layer, f"{prefix}forward_")
        self._backward = _unrolled(layer.backward_layer, f"{prefix}backward_")
        kinds = {"concat": kl.Concatenate, "sum": kl.Add, "mul": kl.Multiply, "ave": kl.Average}
        self._merge = kinds[layer.merge_mode](name=f"{prefix}merged", dtype=layer.dtype_policy)

    @property
    def ranges(self) -> dict[str, str]:
        return {**self._forward.ranges, **self._backward.ranges}

    def __call__(self, sequence: Any) -> Any:
        there: Any = self._forward.outputs(sequence)
        back: Any = self._backward.outputs(sequence)
        if not self._layer.return_sequences:
            return self._merge([there[-1], back[-1]])
        back.reverse()  # Keras lays the second in the order of the first
        return self._merge(
            [self._forward.layers.stacked(there), self._backward.layers.stacked(back)]
        )


def _is_one_call(layer: Any) -> bool:
    """Whether a `TimeDistributed` is one call of its layer on all steps, or of a `Reshape`."""
    if not isinstance(layer, kl.TimeDistributed):
        return False
    inner = layer.layer
    if type(inner) is kl.BatchNormalization and inner.axis != -1:
        return False
    return type(inner) in (*_BY_POSITION, kl.Flatten, kl.Reshape)


class _TimeDistributed:
    """A layer that every step is given to, by itself."""

    def __init__(self, layer: kl.TimeDistributed, prefix: str):
        self._layer, self._prefix = layer, prefix
        self._layers = _Layers(prefix, layer.dtype_policy)
        self._inner: Any = None
        self.ranges: dict[str, str] = {}

    def __call__(self, sequence: Any) -> Any:
        steps, *sizes = sequence.shape[1:]
        outputs = self._layer.compute_output_shape(sequence.shape)[2:]
        if type(self._layer.layer) in (kl.Flatten, kl.Reshape):
            return self._layers(kl.Reshape, "steps", (steps, *outputs))(sequence)
        if len(sizes) > 1:  # steps one below the other
            sequence = self._layers(kl.Reshape, "column", (steps * sizes[0], *sizes[1:]))(sequence)
        if _is_one_call(self._layer):
            given = self._applied(sequence)
        else:
            cut = self._layers.step if len(sizes) == 1 else self._layers.cropped
            each = [self._applied(cut(sequence, step, steps)) for step in range(steps)]
            given = self._layers.joined(each) if len(outputs) > 1 else self._layers.stacked(each)
        if len(outputs) > 1:
            given = self._layers(kl.Reshape, "apart", (steps, *outputs))(given)
        return given

    def _applied(self, tensor: Any) -> Any:
        """The layer on a tensor: built anew, for all steps at once have one more axis than one."""
        if self._inner is None:
            inner = self._layer.layer
            self._inner = inner
            if not isinstance(inner, keras.Model):
                config = {**inner.get_config(), "name": f"{self._prefix}{inner.name}"}
                self._inner = type(inner).from_config(config)
                self._inner.build(tuple(tensor.shape))
                self._inner.set_weights(inner.get_weights())
        return self._inner(tensor)


def _again(initializer: Any) -> Any:
    """A new initializer of the same kind: Keras gives one that is used twice the same numbers."""
    return keras.initializers.get(keras.initializers.serialize(initializer))
