"""Carriers: other people's software that carries CUDA calls over a network. gpushare ships none; a file says how one is
served and used."""
