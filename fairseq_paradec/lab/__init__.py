"""What measures decoders and draws what it finds."""
