"""The calls that container engines make, through hook, wrapper or plugin."""
