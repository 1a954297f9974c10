"""How answers are sampled: one engine protocol, the built-in engine. Import from the modules: nothing loads here."""
