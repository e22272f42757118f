"""The command ``paradec images``; it measures outputs, so it stands on the lab."""
