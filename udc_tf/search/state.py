"""All state of a search that is not weights: logits, and where the run stands."""

from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from udc_tf.cost.priced_network import Decision
from udc_tf.search import decisions, projection, sampling
from udc_tf.search.settings import SearchSettings
from udc_tf.training import schedules

_SETTLING = 0.9  # of what follows the warm-up


class Now(NamedTuple):
    """The schedules' values at one step."""

    warming_up: tf.Tensor
    settled: tf.Tensor
    tau: tf.Tensor
    vartheta: tf.Tensor
    xi: tf.Tensor


class SearchState(keras.layers.Layer):
    """The decisions' logits in one padded matrix, and the step count; both saved with a model."""

    def __init__(
        self, all_decisions: tuple[Decision, ...], settings: SearchSettings, **kwargs: Any
    ):
        super().__init__(trainable=False, **kwargs)
        self.settings = settings
        sizes = np.asarray([len(d.options) for d in all_decisions])
        self.options = int(sizes.max())
        self._valid = np.arange(self.options)[None] < sizes[:, None]
        limit = [settings.kappa.get(d.kind, self.options) for d in all_decisions]
        self._kappa = np.minimum(limit, sizes).astype(np.int32)

    def build(self, _: Any) -> None:
        # Replicas compute all of this alike, from gradients that were summed over them. So each
        # takes its own ("first" is the first of a process): a mean would be one more exchange.
        self.logits = self.add_weight(
            name="logits",
            shape=self._valid.shape,
            initializer="zeros",
            trainable=False,
            autocast=False,
            aggregation="only_first_replica",
        )
        # The largest probability of each decision at the start, above which it rises by xi.
        self.peaks = self.add_weight(
            name="peaks",
            shape=(len(self._valid), 1),
            initializer="zeros",
            trainable=False,
            autocast=False,
            aggregation="only_first_replica",
        )
        # The first guess, which has seen no data; where evidence has sent it, by which harms of
        # the options; what was last solved from harms, from where gradients go on; and what a
        # budget's worth of cost was then worth, in nats.
        for name, shape in (
            ("guess", self._valid.shape),
            ("start", self._valid.shape),
            ("solved", self._valid.shape),
            ("harms", self._valid.shape),
            ("pressure", ()),
            ("price", ()),  # of a budget's worth of size, in the unit of the task's loss
        ):
            record = self.add_weight(
                name=name,
                shape=shape,
                initializer="zeros",
                trainable=False,
                aggregation="only_first_replica",
            )
            setattr(self, name, record)
        self.start_at(np.zeros(self._valid.shape))
        for name in ("step", "planned"):
            counter = self.add_weight(
                name=name,
                shape=(),
                dtype="int64",
                initializer="zeros",
                trainable=False,
                aggregation="only_first_replica",
            )
            setattr(self, name, counter)
        self.built = True

    def start_at(
        self, logits: np.ndarray, harms: np.ndarray | None = None, pressure: float = 0.0
    ) -> None:
        """Sets the probabilities from which the search sets out.

        Args:
            logits: of the decisions.
            harms: of the options, from which the logits follow.
            pressure: under which they meet the budget.
        """
        self.guess.assign(logits)
        self.solved.assign(logits)
        self.logits.assign(logits)
        self.move_start(logits, np.zeros_like(logits) if harms is None else harms, pressure)

    def move_start(self, logits: np.ndarray, harms: np.ndarray, pressure: float) -> None:
        """Sets out from somewhere else; what gradients have added since is added here, too."""
        self.logits.assign_add(logits - self.solved.numpy())
        self.start.assign(logits)
        self.solved.assign(logits)
        self.harms.assign(harms)
        self.pressure.assign(pressure)
        self.peaks.assign(tf.exp(tf.reduce_max(self.log_probabilities(), -1, keepdims=True)))

    @property
    def valid(self) -> tf.Tensor:
        return tf.constant(self._valid)

    def steps_done(self) -> int:
        return int(self.step.numpy())

    def warmup_steps(self) -> int:
        return round(self.settings.warmup * int(self.planned.numpy()))

    def settling_step(self) -> int:
        """The step before which the size is brought to the budget, for good."""
        warmup, planned = self.warmup_steps(), int(self.planned.numpy())
        return round(warmup + _SETTLING * (planned - warmup))

    def log_probabilities(self) -> tf.Tensor:
        return decisions.log_probabilities(tf.convert_to_tensor(self.logits), self.valid)

    def schedule(self) -> Now:
        """Where the schedules are. Each of warm-up and search runs the temperature down."""
        s = self.settings
        step = tf.cast(self.step.value, tf.float32)
        planned = tf.maximum(1.0, tf.cast(self.planned.value, tf.float32))
        warmup = tf.round(s.warmup * planned)
        warming_up = step < warmup
        in_warmup = step / tf.maximum(1.0, warmup)
        in_search = tf.minimum(1.0, (step - warmup) / tf.maximum(1.0, planned - warmup))
        progress = tf.where(warming_up, in_warmup, in_search)
        # From a first guess decisions then rest: the last steps train the weights for them.
        settling = tf.round(warmup + _SETTLING * (planned - warmup))
        settled = tf.logical_and(step >= settling, s.certainty > 0)
        rise = schedules.cosine if s.xi_schedule == "cosine" else schedules.linear
        return Now(
            warming_up=warming_up,
            settled=settled,
            tau=schedules.exponential(*s.tau, progress),
            vartheta=tf.where(warming_up, 0.0, schedules.linear(*s.vartheta, progress)),
            xi=rise(*s.xi, tf.where(warming_up, 0.0, progress)),
        )

    def draw(self, now: Now) -> tf.Tensor:
        """This step's samples, [samples, decisions, options].

        Samples are numbered over all replicas: two with k samples draw what one with 2k does.
        """
        s = self.settings
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        seed = tf.stack([tf.constant(s.seed, tf.int64), self.step.value])
        return sampling.draw(
            tf.convert_to_tensor(self.logits),
            self.valid,
            tf.constant(self._kappa),
            samples=s.samples,
            tau=now.tau,
            vartheta=now.vartheta,
            seed=seed,
            first=tf.cast(replica, tf.int64) * s.samples,
            rejection_draws=s.rejection_draws if s.rejection else 0,
            use_straight_through=s.straight_through,
        )

    def finish_step(self, now: Now) -> None:
        """Projects the updated logits and counts the step."""
        if self.settings.projection:
            logits = tf.convert_to_tensor(self.logits)
            cap = tf.convert_to_tensor(self.peaks) + now.xi
            self.logits.assign(projection.project(logits, self.valid, cap))
        self.step.assign_add(1)

    def settle(self, logits: np.ndarray, harms: np.ndarray, pressure: float) -> None:
        """Solved anew from harms that have what gradients moved in them (`harms_by_now`)."""
        self.logits.assign(logits)
        self.solved.assign(logits)
        self.harms.assign(harms)
        self.pressure.assign(pressure)

    def harms_by_now(self) -> np.ndarray:
        """Of the options: what gradients have moved counts as less, or more, harm."""
        moved = self.logits.numpy() - self.solved.numpy()
        return self.harms.numpy() - moved / self.settings.certainty

    def worth(self) -> np.ndarray | None:
        """Of every option, whatever it costs: minus its harm, if it was weighed against size."""
        return -self.harms_by_now() if float(self.pressure.numpy()) > 0 else None

    def follow_size(self, ratio: tf.Tensor, now: Now) -> None:
        """Raises the price of size above the budget, lowers it below; it rests in the warm-up."""
        price = self.price.value + self.settings.price * tf.math.log(ratio)
        self.price.assign(tf.where(now.warming_up, 0.0, tf.maximum(price, 0.0)))

    def get_config(self) -> dict[str, Any]:
        raise NotImplementedError("A search state is saved as part of its model.")
