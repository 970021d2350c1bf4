"""From a trained network and its sensitivities to networks inside budgets."""

import dataclasses
import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from udc_tf.compact.architecture import get_layer_weights
from udc_tf.compact.build import Compactor, Configuration, LayerChoice, carry_weights
from udc_tf.compress import fisher, sensitivity
from udc_tf.compress.compiled_trials import Trial, Trials, fewest
from udc_tf.compress.compress_settings import CompressSettings
from udc_tf.compress.integer_program import Choice, OutOfReachError, choose
from udc_tf.compress.kept_compression import (
    FORMAT,
    REMEDY,
    Compression,
    keep_result,
    kept_result,
    with_facts,
)
from udc_tf.compress.output_divergence import Divergence
from udc_tf.compress.output_matching import give_back, match_outputs, steps_for
from udc_tf.compress.prices import Prices, option_numbers
from udc_tf.compress.sensitivity import Sensitivities
from udc_tf.compress.storage_options import Option, options_of
from udc_tf.compress.walk import Walk
from udc_tf.compress.weight_fitting import fit_weights
from udc_tf.files import DamagedFileError, read_json, replaced_atomically
from udc_tf.finetune.double_rounding import match_double_rounding
from udc_tf.finetune.whole_biases import make_biases_whole
from udc_tf.graph.conversion import keep_output_names, layer_weights, safe_name
from udc_tf.layers.inventory import kernel_layers
from udc_tf.search.extract import describe_choice
from udc_tf.search.problem import SearchProblem
from udc_tf.search.repair import Budget

_ROUNDS = 6
_ENOUGH = 0.985  # of the budget: what a further round would hardly improve
_FISHER_EXAMPLES = 128
_GIVEN_BACK = (0.3, 0.6)  # of the codes that matching changed, where they take too many bytes
_ROOM = 0.006  # of a flash budget, that is left for what matching adds
_BATCH = 64


@dataclasses.dataclass(frozen=True)
class _Fitted:
    network: keras.Model
    choice: Choice
    trial: Trial | None  # None where no compiler can tell


class Compressor:
    """One trained model, its examples and its sensitivities.

    Args:
        model: is left as it is.
        problem: its layers and options; all others that it is asked about have the same.
        inputs: one array per input.
        classes: of the examples, or None.
        settings: which parts are at work.
        seed: of the noise with which importances are estimated.
        say: is told of progress.
        workdir: where sensitivities are kept, if anywhere.
        until: after that, no further effects are measured (`time.monotonic`).
        begun: processor time at the beginning.
        are_logits: whether outputs without a softmax are logits of classes.
    """

    def __init__(
        self,
        model: keras.Model,
        problem: SearchProblem,
        inputs: list[np.ndarray],
        classes: np.ndarray | None,
        settings: CompressSettings,
        seed: int,
        say: Callable[[str], object],
        workdir: str | os.PathLike | None,
        until: float | None,
        begun: float,
        *,
        are_logits: bool = False,
    ):
        self._model, self._graph = model, problem.compactable
        self._settings, self._seed = settings, seed
        self._workdir, self._until, self._begun = workdir, until, begun
        self._progress = _Progress(say)
        self._sources = {
            node.name: layer_weights(node.layer)
            for node in self._graph[0].nodes
            if getattr(node.layer, "weights", ())
        }
        self._original = self._built({})
        most = Walk(self._original, self._original).most_examples()
        self._inputs = [x[:most] for x in inputs]
        self._classes, self._are_logits = None if classes is None else classes[:most], are_logits
        self._options = options_of(problem.plan)
        self._divergence = Divergence(self._original, are_logits=are_logits)
        self._kept: Sensitivities | None = None
        self._trials = Trials(self._options, self._built, self._inputs)
        self._wanted = self._outputs(self._original)
        if all(np.ptp(y, axis=0).max() == 0 for y in self._wanted):
            raise ValueError(
                "The network must tell the examples apart; is it trained, and are they scaled as "
                "in training? Received: the same outputs for all of them"
            )

    def compressed(self, problem: SearchProblem, folder: Path | None) -> keras.Model:
        """The network inside the problem's targets, with its architecture.

        Args:
            folder: where the result is kept, or was kept before; None: nowhere.
        """
        key = self._key([t.to_dict() for t in problem.targets])
        if folder is not None and (tiny := kept_result(folder, key)) is not None:
            self._progress.say(f"compress: done before, {folder}")
            return tiny
        self.require_reachable(problem)  # before anything is kept
        sensitivities, prices = (
            self._sensitivities(),
            self._trials.prices(problem, self._entropies()),
        )
        self._keep_sensitivities()
        found, rounds = self._within(problem, prices, sensitivities)
        found = self._matched(problem, found)
        outputs = self._outputs(found.network)
        chosen = self._chosen(found.choice)
        described = describe_choice(problem, option_numbers(problem.plan, chosen))
        if found.trial is not None:
            described = found.trial.told(described)
        architecture = dataclasses.replace(described, weights=get_layer_weights(found.network))
        compression = Compression(
            flash_bytes=None if found.trial is None else found.trial.flash_bytes,
            divergence=self._divergence.between(self._wanted, outputs),
            accuracy_before=self._accuracy(self._wanted),
            accuracy_after=self._accuracy(outputs),
            harm=found.choice.harm,
            bound=found.choice.bound,
            rounds=rounds,
            seconds=round(time.process_time() - self._begun, 1),
        )
        self._begun = time.process_time()
        if folder is not None:
            keep_result(folder, key, architecture, compression)
        return with_facts(found.network, architecture, compression)

    # Sensitivities.
    def _sensitivities(self) -> Sensitivities:
        if self._kept is not None:
            return self._kept
        path = None if self._workdir is None else Path(self._workdir, "sensitivities.json")
        if path is not None and path.is_file():
            content = read_json(path, REMEDY)
            if content.get("key") == self._key([]):
                try:
                    self._kept = Sensitivities.from_dict(content)
                    return self._kept
                except (LookupError, TypeError, ValueError) as error:
                    raise DamagedFileError(path, error, REMEDY) from error
        few = [x[:_FISHER_EXAMPLES] for x in self._inputs]
        importance = fisher.channel_importance(self._original, few, self._divergence, self._seed)
        self._kept = sensitivity.measure(
            self._original,
            {safe_name(n): o for n, o in self._options.items()},
            importance,
            self._inputs,
            self._divergence,
            probe_examples=self._settings.probe_examples if self._settings.measured else 0,
            until=self._until,
            progress=self._progress,
        )
        return self._kept

    def _keep_sensitivities(self) -> None:
        if self._workdir is None or self._kept is None:
            return
        path = Path(self._workdir, "sensitivities.json")
        with replaced_atomically(path) as partial:
            partial.write_text(json.dumps({"key": self._key([]), **self._kept.to_dict()}))

    def _key(self, targets: list[dict[str, Any]]) -> str:
        """Differs where anything differs that a result depends on."""
        total = hashlib.sha256(
            json.dumps(
                [
                    FORMAT,
                    {n: [dataclasses.asdict(o) for o in row] for n, row in self._options.items()},
                    dataclasses.asdict(self._settings),
                    self._seed,
                    self._are_logits,
                    self._classes is not None,
                    targets,
                ],
                sort_keys=True,
            ).encode()
        )
        for array in (*self._model.get_weights(), *self._inputs):
            total.update(np.ascontiguousarray(array).tobytes())
        return total.hexdigest()[:16]

    # The choice, and networks that are fitted and compiled until one is inside.
    def _best_choice(self, prices: Sequence[Prices], sensitivities: Sensitivities) -> Choice | None:
        """None if not even the cheapest options are inside."""
        harms = [np.array(sensitivities.layers[safe_name(n)].harms) for n in self._options]
        try:
            return choose(
                harms, [p.layers for p in prices], [p.budget - p.constant for p in prices]
            )
        except OutOfReachError:
            return None

    def require_reachable(self, problem: SearchProblem) -> None:
        """Raises a `ValueError` if no choice is inside the targets.

        The least that can be stored is compiled before anything is measured.
        """
        nothing = {name: [0.0] * len(row) for name, row in self._options.items()}
        prices = self._trials.prices(problem, nothing)
        if any(p.smallest > p.budget for p in prices):
            raise _out_of_reach(problem, prices)
        self._progress.say(f"compress: the least is {_least(problem, prices)}")

    def _entropies(self) -> dict[str, Sequence[float]]:
        layers = self._sensitivities().layers
        return {n: layers[safe_name(n)].entropies for n in self._options}

    def _within(
        self, problem: SearchProblem, prices: list[Prices], sensitivities: Sensitivities
    ) -> tuple[_Fitted, int]:
        room = 0.0 if self._settings.steps == 0 else _ROOM
        prices = [p.with_room(room) if p.is_flash else p for p in prices]
        best: _Fitted | None = None
        roomy = False
        tried: set[tuple[int, ...]] = set()
        said = ""
        for number in range(_ROUNDS):
            choice = self._best_choice(prices, sensitivities)
            known = choice is None or choice.options in tried
            if best is None and (known or number == _ROUNDS - 1):
                choice = self._least_choice(sensitivities)
            if choice is None or choice.options in tried:
                break
            tried.add(choice.options)
            network = self._fitted(choice, sensitivities)
            trial = self._trials.of(problem, network)
            if trial is None:
                best = _Fitted(network, choice, None)
                break
            said = trial.describe()
            self._progress.say(f"compress: compiled, {said}")
            within = trial.flash_bytes is None or trial.use <= 1 - room / 2
            has_room = trial.holds and within
            if trial.holds and (
                best is None or (has_room, -choice.harm) > (roomy, -best.choice.harm)
            ):
                best, roomy = _Fitted(network, choice, trial), has_room
            if has_room and trial.use >= _ENOUGH:
                break
            prices = self._trials.corrected(prices, choice, trial)
        if best is None:
            raise ValueError(
                f"None of {len(tried)} compiled networks was inside the targets; search for a "
                f"smaller one (udc_tf.make_searchable). Received: at last {said}"
            )
        if trial is None:
            chosen = option_numbers(problem.plan, self._chosen(best.choice))
            if (ratio := Budget(problem.bound).ratio(chosen)) > 1:
                raise ValueError(f"The targets do not hold together. Received: {ratio:.1%} of them")
        return best, len(tried)

    def _least_choice(self, sensitivities: Sensitivities) -> Choice:
        """What stores least: where prices mislead, it may still be inside."""
        least = fewest(self._options)
        numbers = tuple(row.index(least[name]) for name, row in self._options.items())
        harms = [sensitivities.layers[safe_name(n)].harms for n in self._options]
        harm = sum(row[i] for row, i in zip(harms, numbers, strict=True))
        return Choice(numbers, harm, bound=sum(map(min, harms)))

    def _matched(self, problem: SearchProblem, found: _Fitted) -> _Fitted:
        """The network with its outputs nearer to the original's, if it is still inside.

        Codes that change may take more bytes. Then some are what they were, or at last all.
        """
        network, before = found.network, found.network.get_weights()
        kernels = [kernel.theta.numpy() for kernel in kernel_layers(network)]
        steps = steps_for(network) if self._settings.steps is None else self._settings.steps
        for codes in (True, False) if steps else ():
            if not self._match(network, steps, codes):
                continue
            for share in (0.0, *_GIVEN_BACK) if codes else (0.0,):
                if share:
                    give_back(network, kernels, share)
                    self._match(network, -(-steps // 10), codes=False)
                make_biases_whole(network)
                match_double_rounding(network)
                trial = self._trials.of(problem, network)
                if trial is None:
                    return found
                self._progress.say(f"compress: with matched outputs, {trial.describe()}")
                if trial.holds:
                    return dataclasses.replace(found, trial=trial)
            network.set_weights(before)
        return found

    def _match(self, network: keras.Model, steps: int, codes: bool) -> bool:
        return match_outputs(
            network,
            self._original,
            self._inputs,
            self._divergence,
            steps=steps,
            codes=codes,
            seed=self._seed,
            until=self._until,
            progress=self._progress,
        )

    def _chosen(self, choice: Choice) -> dict[str, Option]:
        rows = zip(self._options.items(), choice.options, strict=True)
        return {name: options[number] for (name, options), number in rows}

    def _fitted(self, choice: Choice, sensitivities: Sensitivities) -> keras.Model:
        chosen = self._chosen(choice)
        network = self._built({n: LayerChoice(o.bits, o.nonzeros) for n, o in chosen.items()})
        fit_weights(
            network,
            self._original,
            {safe_name(n): o for n, o in chosen.items()},
            self._inputs,
            sensitivities,
            self._settings,
            self._progress,
        )
        return network

    def _built(self, layers: Mapping[str, LayerChoice]) -> keras.Model:
        """The compact network of these layers, all others in float, with the original's weights."""
        graph, groups = self._graph
        compactor = Compactor(graph, groups, Configuration(layers=layers))
        network = compactor.build()
        keep_output_names(self._model, network)
        carry_weights(compactor.layers, self._sources)
        return network

    def _outputs(self, network: keras.Model) -> list[np.ndarray]:
        parts = []
        for start in range(0, len(self._inputs[0]), _BATCH):
            batch = [keras.ops.convert_to_tensor(x[start : start + _BATCH]) for x in self._inputs]
            found = network(keras.tree.pack_sequence_as(network.input, batch), training=False)
            parts.append([keras.ops.convert_to_numpy(y) for y in keras.tree.flatten(found)])
        return [np.concatenate(part) for part in zip(*parts, strict=True)]

    def _accuracy(self, outputs: Sequence[np.ndarray]) -> float | None:
        if self._classes is None:
            return None
        return float((outputs[0].argmax(axis=-1) == self._classes).mean())


def _least(problem: SearchProblem, prices: Sequence[Prices]) -> str:
    rows = zip(problem.targets, prices, strict=True)
    parts = [f"{t.describe(p.smallest)}, the budget is {t.describe(t.budget)}" for t, p in rows]
    return "; ".join(parts)


def _out_of_reach(problem: SearchProblem, prices: Sequence[Prices]) -> ValueError:
    return ValueError(
        "No choice of bits and sparsities is inside the targets; fewer channels would be smaller: "
        "search (udc_tf.make_searchable). Received: a network of at least "
        f"{_least(problem, prices)}"
    )


class _Progress:
    """Says, every few seconds, how much of a part is done and how long the rest of it will take."""

    def __init__(self, say: Callable[[str], object], every: float = 5.0):
        self.say, self._every = say, every
        self._part, self._begun, self._said, self._share = "", 0.0, 0.0, 0.0

    def __call__(self, part: str, share: float) -> None:
        now = time.monotonic()
        if part != self._part or share < self._share:
            self._part, self._begun, self._said = part, now, now
        self._share = share
        if now - self._said > self._every:
            self._said = now
            left = (now - self._begun) * (1 - share) / max(share, 1e-6)
            self.say(f"compress: {part}, {share:.0%}, about {left:.0f} s left")
