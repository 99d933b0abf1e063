"""Reproduce what the paper reports, on public data: each table and figure is one function.

``simulator`` runs any plan many times; the other modules are the experiments, and ``report`` puts
them side by side with the paper.
"""
