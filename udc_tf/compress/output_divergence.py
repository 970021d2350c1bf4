"""How far a network's outputs are from the original's, as one number."""

from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

from udc_tf.finetune.step import distillation_loss
from udc_tf.graph.layer_rules import activation_of_node
from udc_tf.graph.trace import trace

_TINY = 1e-7
_TEMPERATURE = 2.0
_LARGE = 1e3


class Divergence:
    """Of probabilities the Kullback-Leibler divergence, of other outputs the relative square error.

    Several outputs count alike.

    Args:
        model: whose outputs they are.
        are_logits: whether outputs without a softmax are logits of classes.
    """

    def __init__(self, model: keras.Model, are_logits: bool = False):
        graph = trace(model)
        makers = {r.id: n for n in graph.nodes for r in keras.tree.flatten(n.outputs)}
        outputs = keras.tree.flatten(graph.outputs)
        self._probabilities = [
            ref.id in makers and activation_of_node(makers[ref.id]).name == "softmax"
            for ref in outputs
        ]
        self._logits = [are_logits and not p for p in self._probabilities]

    def between(self, original: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> float:
        """The mean over the examples."""
        found = 0.0
        for i, (wanted, given) in enumerate(zip(original, outputs, strict=True)):
            wanted, given = (np.asarray(a, np.float64) for a in (wanted, given))
            if self._logits[i]:
                wanted, given = _softmax(wanted), _softmax(given)
            if self._probabilities[i] or self._logits[i]:
                p, q = (np.clip(a, _TINY, 1.0) for a in (wanted, given))
                found += float((p * np.log(p / q)).sum(axis=-1).mean())
            else:
                found += float(np.square(wanted - given).mean() / max(_TINY, wanted.var()))
        return min(found, _LARGE) if np.isfinite(found) else _LARGE

    def loss(self, original: Sequence[tf.Tensor], outputs: Sequence[tf.Tensor]) -> tf.Tensor:
        """What gradients lower: as `between`, with probabilities tempered.

        Unlikely classes then count, too: more can be learned from each example.
        """
        total = 0.0
        for i, (wanted, given) in enumerate(zip(original, outputs, strict=True)):
            if self._probabilities[i]:
                wanted, given = (tf.math.log(tf.maximum(y, _TINY)) for y in (wanted, given))
            if self._probabilities[i] or self._logits[i]:
                total += distillation_loss(given, wanted, _TEMPERATURE)
            else:
                variance = tf.maximum(tf.math.reduce_variance(wanted), _TINY)
                total += tf.reduce_mean(tf.square(wanted - given)) / variance
        return total

    def sampled(self, outputs: Sequence[tf.Tensor], noise: Sequence[tf.Tensor]) -> tf.Tensor:
        """A number per example whose squared gradients have the divergence's curvature as mean.

        Args:
            noise: standard normal, of the shapes of the outputs.
        """
        total = 0.0
        for i, (output, normal) in enumerate(zip(outputs, noise, strict=True)):
            if self._probabilities[i] or self._logits[i]:
                logs = tf.nn.log_softmax(output) if self._logits[i] else tf.math.log(output + _TINY)
                # The Fisher information is the mean over classes, as probable as the network says.
                labels = tf.random.stateless_categorical(
                    tf.reshape(logs, (-1, logs.shape[-1])),
                    1,
                    tf.cast(tf.reduce_sum(normal) * 1e3, tf.int32) * tf.constant([1, 7]),
                )[:, 0]
                labels = tf.reshape(labels, tf.shape(logs)[:-1])
                picked = tf.gather(logs, labels, axis=-1, batch_dims=len(logs.shape) - 1)
                total += tf.reduce_sum(picked)
            else:
                deviation = tf.maximum(tf.math.reduce_std(tf.stop_gradient(output)), _TINY)
                scale = tf.sqrt(tf.cast(tf.size(output[0]), output.dtype))
                total += tf.reduce_sum(output * normal) / (deviation * scale)
        return total


def _softmax(logits: np.ndarray) -> np.ndarray:
    exponentials = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)
