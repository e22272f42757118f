"""How models are trained: settings (presets.toml), schedule, fairseq-train in a child process."""
