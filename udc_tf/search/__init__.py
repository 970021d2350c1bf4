"""The search: space, plan, decisions, and the model whose `fit` trains them."""
