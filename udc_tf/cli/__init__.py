"""The command line: `udc`, `udc-search`, `udc-finetune`, `udc-export`.

It stands on top of core, models and export; none of them knows it.
"""
