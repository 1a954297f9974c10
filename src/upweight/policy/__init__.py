"""The model: load, save, template, score tokens, warm up. Import from the modules; this file loads nothing."""
