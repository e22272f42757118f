"""What a pass costs, measured; and the least that it could cost."""
