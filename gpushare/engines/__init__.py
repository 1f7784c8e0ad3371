"""The engines' own configuration files: what makes each of them start containers with gpushare, put in and taken out.

`toml_text` and `json_text` edit text and touch no file; `files` reads and writes; a module per engine says what belongs
into its file; `configuration` puts these together for the verbs of `gpushare runtime`.
"""
