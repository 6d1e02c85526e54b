"""What bucketlab's speed and memory claims rest on, measured beside mx.mod and beside the engine's own floor.

``python -m tests.benchmarks step`` prints a table; ``--json`` prints the figures. Machines differ and are shared: only
ratios within one run are claims.
"""
