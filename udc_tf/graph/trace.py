"""A Keras functional model as a flat list of calls.

Nested models are inlined, `SeparableConv1D` and `SeparableConv2D` are split into their two
convolutions, layers over time are written out step by step (`unrolling`), others that are several
operators in int8 are expanded (`expansions`) and the branches of a `Choice` are laid out side by
side, joined by a `Mix`. Everything that walks the network (channel groups, the searchable model,
the compact model, the cost tables) walks this list.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import keras
from keras import tree

from udc_tf.graph import unrolling
from udc_tf.graph.expansions import EXPANSIONS, distinct, expand, inputs_of, role_of, why_not
from udc_tf.graph.traceable import as_functional, settle_normalizations, true_copy
from udc_tf.layers.choice import Choice, Mix


@dataclasses.dataclass(frozen=True)
class TensorRef:
    """Stands for a tensor of the traced model."""

    id: int
    shape: tuple[int | None, ...]


@dataclasses.dataclass(frozen=True)
class Gate:
    """Being inside branch `branch` of the choice named `choice`."""

    choice: str
    branch: int


@dataclasses.dataclass(frozen=True)
class Whole:
    """A layer of the model that was written out as several calls.

    `ranges` has the parts that share an 8-bit range with others: name -> name of the range.
    """

    name: str
    kind: str
    ranges: Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class Node:
    """One call of one layer (or `keras.ops` operation).

    `whole` is the layer over time that the call is a part of, if it is of one.
    """

    name: str
    layer: Any  # a keras.Operation, with the attributes of its own class
    args: tuple
    kwargs: dict[str, Any]
    outputs: Any
    gates: tuple[Gate, ...] = ()
    whole: Whole | None = None

    @property
    def inputs(self) -> list[TensorRef]:
        return [t for t in tree.flatten((self.args, self.kwargs)) if isinstance(t, TensorRef)]

    @property
    def output(self) -> TensorRef:
        """The only output; layers with several are treated as unknown and ask for `outputs`."""
        return tree.flatten(self.outputs)[0]


@dataclasses.dataclass(frozen=True)
class Graph:
    """The calls of a model in an order in which they can be made."""

    name: str
    inputs: Any
    outputs: Any
    nodes: tuple[Node, ...]
    input_names: tuple[str, ...]
    input_dtypes: tuple[str, ...]

    def consumers(self, ref: TensorRef) -> list[Node]:
        return [n for n in self.nodes if any(r.id == ref.id for r in n.inputs)]

    def rebuild(
        self,
        convert: Callable[[Node], Callable | None],
        model_class: type[keras.Model] = keras.Model,
    ) -> keras.Model:
        """Calls `convert(node)` on each node's (new) arguments and returns the model that results.

        `convert` gives what to call in the node's place; calls of one shared layer must be given
        one and the same object. `None` drops the node: only for nodes whose outputs nobody takes.
        """
        tensors: dict[int, Any] = {}
        inputs = []
        for ref, name, dtype in zip(
            tree.flatten(self.inputs), self.input_names, self.input_dtypes, strict=True
        ):
            tensors[ref.id] = keras.Input(batch_shape=ref.shape, dtype=dtype, name=name)
            inputs.append(tensors[ref.id])

        def fill(value: Any) -> Any:
            # None: the output of a dropped node, which only a `Mix` may be given.
            return tensors.get(value.id) if isinstance(value, TensorRef) else value

        for node in self.nodes:
            call = convert(node)
            if call is None:
                continue
            args, kwargs = tree.map_structure(fill, (node.args, node.kwargs))
            produced = tree.flatten(call(*args, **kwargs))
            for ref, tensor in zip(tree.flatten(node.outputs), produced, strict=True):
                tensors[ref.id] = tensor
        return model_class(
            tree.pack_sequence_as(self.inputs, inputs),
            tree.map_structure(fill, self.outputs),
            name=self.name,
        )


def trace(model: keras.Model, copy: bool = True) -> Graph:
    """The flat graph of a functional or sequential model.

    Tracing calls every layer once more, which layers remember; so it works on a copy, unless
    `copy=False` says that nobody else needs the model.

    Example:

    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, name="head")])
    >>> [node.name for node in trace(model).nodes]
    ['head']
    """
    original = as_functional(model)
    functional = true_copy(original) if copy else original
    settle_normalizations(functional)
    tracer = _Tracer()
    inputs = tree.map_structure(tracer.ref, functional.input)
    outputs = tracer.inline(functional, functional.input, prefix="", gates=())
    flat = tree.flatten(functional.input)
    return Graph(
        name=model.name,
        inputs=inputs,
        outputs=tree.map_structure(tracer.ref, outputs),
        nodes=tuple(tracer.nodes),
        input_names=_input_names(original),
        input_dtypes=tuple(t.dtype for t in flat),
    )


def _input_names(model: keras.Model) -> tuple[str, ...]:
    """Names of the input layers: a tensor's own name changes when a model is saved and loaded."""
    names = {
        id(layer.output): layer.name
        for layer in model.layers
        if isinstance(layer, keras.layers.InputLayer)
    }
    return tuple(names[id(tensor)] for tensor in tree.flatten(model.input))


def _plainly_called(layer: Any, args: tuple, kwargs: dict[str, Any]) -> bool:
    """Whether a layer over time is given a sequence that it can be written out for, and no more."""
    more = [value for key, value in kwargs.items() if key != "training" and value is not None]
    if len(args) != 1 or more or getattr(args[0], "_keras_mask", None) is not None:
        return False
    return unrolling.refusal(layer, args[0].shape) is None


class _AllSeenError(Exception):
    """Ends a walk whose result is not needed."""


class _Tracer:
    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self._refs: dict[int, TensorRef] = {}
        self._keep: list[Any] = []  # ids are only unique while the tensors live
        self._names: dict[int, str] = {}
        self._split: dict[int, list[keras.layers.Layer]] = {}
        self._unrolled: dict[int, unrolling.Unrolled] = {}
        self._whole: Whole | None = None  # what is being written out
        self._expansions: dict[int, tuple[list, keras.Model]] = {}  # by layer: shapes, model
        self._of_expansions: set[str] = set()  # prefixes of what is inside of them

    def ref(self, tensor: keras.KerasTensor) -> TensorRef:
        if id(tensor) not in self._refs:
            self._keep.append(tensor)
            self._refs[id(tensor)] = TensorRef(len(self._refs), tuple(tensor.shape))
        return self._refs[id(tensor)]

    def inline(self, model: keras.Model, inputs: Any, prefix: str, gates: tuple[Gate, ...]) -> Any:
        """Records the calls of `model` on `inputs`; returns its outputs.

        `clone_model` is the public way to walk a functional model. What it would return is of no
        use here (and cannot be made of a model that is called on its own outputs, or twice on one
        tensor): the outputs are picked up on the way, at marks set behind them, and the last of
        these ends the walk.
        """
        functional = as_functional(model)
        marks = [keras.layers.Identity() for _ in tree.flatten(functional.output)]
        marked = [m(t) for m, t in zip(marks, tree.flatten(functional.output), strict=True)]
        outputs: dict[int, Any] = {}

        def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
            if layer in marks:
                outputs[marks.index(layer)] = args[0]
                if len(outputs) == len(marks):
                    raise _AllSeenError
                return args[0]
            return self._call(layer, args, kwargs, prefix, gates)

        with contextlib.suppress(_AllSeenError):
            keras.models.clone_model(
                keras.Model(functional.input, marked),
                input_tensors=inputs,
                clone_function=lambda layer: layer,
                call_function=call,
            )
        flat = [outputs[i] for i in range(len(marks))]
        return tree.pack_sequence_as(functional.output, flat)

    def _call(
        self, layer: Any, args: tuple, kwargs: dict[str, Any], prefix: str, gates: tuple[Gate, ...]
    ) -> Any:
        name = self._name(layer, prefix)
        if isinstance(layer, Choice):
            return self._choice(layer, name, args[0], gates)
        if isinstance(layer, keras.Model):
            for key in ("training", "mask"):
                given = kwargs.pop(key, None)
                if any(x is not None and x is not False for x in tree.flatten(given)):
                    raise ValueError(
                        f"The nested model `{name}` is called with `{key}`, which has no int8 form "
                        f"here; leave it out. Received: {key}={given}"
                    )
            (value,) = args or tuple(kwargs.values())
            return self.inline(layer, value, f"{name}/", gates)
        if isinstance(layer, (keras.layers.SeparableConv1D, keras.layers.SeparableConv2D)):
            depthwise, pointwise = self._split_separable(layer, name)
            inner = self._record(depthwise, depthwise.name, args, {}, gates)
            return self._record(pointwise, pointwise.name, (inner,), {}, gates)
        if type(layer) in unrolling.KINDS and _plainly_called(layer, args, kwargs):
            return self._unroll(layer, name, args[0], gates)
        if (expanded := self._expanded(layer, args, kwargs)) is not None:
            given = tree.pack_sequence_as(expanded.input, distinct(inputs_of(args, kwargs)))
            self._of_expansions.add(f"{name}/")
            return self.inline(expanded, given, f"{name}/", gates)
        return self._record(layer, name, args, kwargs, gates)

    def _unroll(self, layer: Any, name: str, inputs: Any, gates: tuple[Gate, ...]) -> Any:
        if id(layer) not in self._unrolled:
            self._unrolled[id(layer)] = unrolling.Unrolled(layer, name)
        unrolled = self._unrolled[id(layer)]
        outer = self._whole
        self._whole = outer or Whole(name, type(layer).__name__, unrolled.ranges)
        outputs = self.inline(unrolled.network(inputs.shape), inputs, "", gates)
        self._whole = outer
        return outputs

    def _expanded(self, layer: Any, args: tuple, kwargs: dict[str, Any]) -> keras.Model | None:
        """The model that stands for a layer, one for all its calls; None if there is none."""
        if type(layer) not in EXPANSIONS or why_not(layer, args, kwargs) is not None:
            return None
        inputs = inputs_of(args, kwargs)
        places = [id(x) for x in distinct(inputs)]
        shapes = [(places.index(id(x)), tuple(x.shape)) for x in inputs]
        if id(layer) not in self._expansions:
            self._keep.append(layer)
            self._expansions[id(layer)] = shapes, expand(layer, inputs)
        known, expanded = self._expansions[id(layer)]
        return expanded if known == shapes else None

    def _record(
        self, layer: Any, name: str, args: tuple, kwargs: dict[str, Any], gates: tuple[Gate, ...]
    ) -> Any:
        outputs = layer(*args, **kwargs)

        def to_ref(value: Any) -> Any:
            return self.ref(value) if isinstance(value, keras.KerasTensor) else value

        refs = tree.map_structure(to_ref, (tuple(args), kwargs, outputs))
        self.nodes.append(Node(name, layer, refs[0], refs[1], refs[2], gates, self._whole))
        return outputs

    def _choice(self, choice: Choice, name: str, inputs: Any, gates: tuple[Gate, ...]) -> Any:
        branches = []
        for index, branch in enumerate(choice.branches):
            inside = (*gates, Gate(name, index))
            branches.append(self._call(branch, (inputs,), {}, f"{name}/", inside))
        mix = self._split.setdefault(id(choice), [Mix(len(branches), name=f"{name}_mix")])[0]
        return self._record(mix, name, (branches,), {}, gates)

    def _name(self, layer: Any, prefix: str) -> str:
        """The layer's name, made unique over nested models; one name for all its calls."""
        if id(layer) not in self._names:
            own = role_of(layer) if prefix in self._of_expansions else layer.name
            name, taken, n = f"{prefix}{own}", set(self._names.values()), 1
            while name in taken:
                n += 1
                name = f"{prefix}{own}_{n}"
            self._names[id(layer)] = name
        return self._names[id(layer)]

    def _split_separable(self, layer: Any, name: str) -> list[keras.layers.Layer]:
        """Two layers that together compute what a built separable convolution does."""
        if id(layer) in self._split:
            return self._split[id(layer)]
        config, flat = layer.get_config(), isinstance(layer, keras.layers.SeparableConv1D)
        make_depthwise = keras.layers.DepthwiseConv1D if flat else keras.layers.DepthwiseConv2D
        make_pointwise = keras.layers.Conv1D if flat else keras.layers.Conv2D
        depthwise = make_depthwise(
            config["kernel_size"],
            strides=config["strides"],
            padding=config["padding"],
            dilation_rate=config["dilation_rate"],
            depth_multiplier=config["depth_multiplier"],
            data_format=config["data_format"],
            use_bias=False,
            depthwise_initializer=config["depthwise_initializer"],
            depthwise_regularizer=config["depthwise_regularizer"],
            name=f"{name}_depthwise",
        )
        pointwise = make_pointwise(
            config["filters"],
            1,
            data_format=config["data_format"],
            use_bias=config["use_bias"],
            activation=config["activation"],
            kernel_initializer=config["pointwise_initializer"],
            bias_initializer=config["bias_initializer"],
            kernel_regularizer=config["pointwise_regularizer"],
            bias_regularizer=config["bias_regularizer"],
            name=f"{name}_pointwise",
        )
        *spatial, inputs, times = layer.depthwise_kernel.shape
        positions = (None,) * len(spatial)
        depthwise.build((None, *positions, inputs))
        pointwise.build((None, *positions, inputs * times))
        depthwise.set_weights([layer.depthwise_kernel.numpy()])
        pointwise.set_weights(
            [layer.pointwise_kernel.numpy()] + ([layer.bias.numpy()] if layer.use_bias else [])
        )
        self._split[id(layer)] = [depthwise, pointwise]
        return self._split[id(layer)]
