"""Where prompts come from: built-in arithmetic, JSONL files, rows in memory. Imports no torch."""
