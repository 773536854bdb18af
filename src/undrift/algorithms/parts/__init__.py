"""What several papers share. A part knows ``core`` and other parts, never a method; it is not a method itself."""
