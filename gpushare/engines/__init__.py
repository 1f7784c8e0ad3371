"""Edits the engines' own configuration files so that each starts containers with gpushare, and undoes the edits.

`toml_text` and `json_text` edit text and touch no file; `files` reads and writes; one module per engine defines what
belongs into its file; `configuration` combines these for the verbs of `gpushare runtime`.
"""
