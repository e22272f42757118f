"""What an update costs besides its products: dropout, Adam, memory, outputs of frozen parts.

The losses have their own place (criterions/projected_cross_entropy.py).
"""
