"""How answers are sampled: one engine protocol, the built-in engine. Import from the modules; this file loads nothing."""
