"""What single things cost: one module for each WHAT of ``paradec profile``."""
