"""From a description of an experiment to its rounds: described, prepared, executed, evaluated."""
