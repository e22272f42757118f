"""What is measured: samples, typed tables, and the JSON files that hold them."""
