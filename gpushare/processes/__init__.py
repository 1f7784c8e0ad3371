"""What our processes have in common: the privileges they give up, the descriptors they refuse, how connections end."""
