"""What the tests share: tiny models and data, oracles, commands, stubs, and a browser."""
