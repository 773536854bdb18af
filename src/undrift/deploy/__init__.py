"""A real federation: sites that keep their data, over an engine that carries bytes.

``pipe`` is the seam that the protocol stands on; it knows no engine. ``wire``, ``pipe``, ``bridge`` and ``relay`` are
standard library alone, so that an engine's processes import neither torch nor the core. ``nvflare`` and ``flower`` are
the engines; ``kits`` and ``engine`` set one up and run it.
"""
