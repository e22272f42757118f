"""Data folders with a teacher's translations as targets."""
