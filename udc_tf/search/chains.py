"""Layers that stand or fall together, because data pass through all of them and nowhere else."""

from udc_tf.cost.priced_network import Plan, PricedLayer


def chains_of(plan: Plan) -> dict[str, int]:
    """Layer -> the number of its chain, for chains of several layers.

    Two layers are neighbours in one if what the first makes only the second reads, and the second
    reads nothing else; a depthwise layer goes with what makes its channels. Channels that are added
    to others have several makers, so a chain ends there.
    """
    makers: dict[int, list[PricedLayer]] = {}
    readers: dict[int, list[PricedLayer]] = {}
    for layer in plan.layers:
        for group in plan.group_of(layer.outputs):
            passes_on = layer.inputs is None
            (readers if passes_on else makers).setdefault(group, []).append(layer)
        for group in plan.group_of(layer.inputs) if layer.inputs is not None else ():
            readers.setdefault(group, []).append(layer)
    chain_of = {layer.name: number for number, layer in enumerate(plan.layers)}
    for group, made_by in makers.items():
        together = [*made_by, *readers.get(group, ())]
        if len(made_by) == 1 and _is_one_way(plan, group, together):
            numbers = {chain_of[layer.name] for layer in together}
            for name, number in chain_of.items():
                chain_of[name] = min(numbers) if number in numbers else number
    members = list(chain_of.values())
    return {name: n for name, n in chain_of.items() if members.count(n) > 1}


def contents_of(plan: Plan) -> dict[str, dict[int, list[str]]]:
    """Choice -> branch -> the layers in it, which are there or not together."""
    found: dict[str, dict[int, list[str]]] = {}
    for layer in plan.layers:
        for gate in layer.gates:
            found.setdefault(gate.choice, {}).setdefault(gate.branch, []).append(layer.name)
    return found


def _is_one_way(plan: Plan, group: int, layers: list[PricedLayer]) -> bool:
    """Whether the channels pass through all of these layers, one after the other."""
    reading = [layer for layer in layers[1:] if layer.inputs is not None]
    only = all(
        plan.group_of(layer.outputs if layer.inputs is None else layer.inputs) == [group]
        for layer in layers[1:]
    )
    alike = len({layer.gates for layer in layers}) == 1
    whole = plan.group_of(layers[0].outputs) == [group] and plan.groups[group].frozen is None
    return whole and only and alike and len(reading) <= 1
