"""A trained model to a budget without training: sensitivities, the choice, the weights."""
