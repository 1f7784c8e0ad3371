"""doctor/yaml_text.py against PyYAML, on what programs write, and on what it leaves alone."""

import json

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gpushare.doctor import yaml_text

NVIDIA = """\
---
# nvidia-ctk
cdiVersion: 0.5.0
containerEdits:
  deviceNodes:
  - path: /dev/nvidiactl
  env:
  - NVIDIA_VISIBLE_DEVICES=void
  - "A: b"
  hooks:
  - args:
    - nvidia-cdi-hook
    - --link
    - libglx.so.550::/usr/lib/x
    hookName: createContainer
  mounts:
    - containerPath: /usr/lib/x.so
      options: [ "ro", "nosuid" ]  # by hand
    -
      hostPath: /usr/lib/y.so
      options: [ro, nosuid]
devices:
- containerEdits:
    deviceNodes:
    - major: 195
      path: /dev/nvidia0
  name: "0"  # the first
- name: 'it''s'
  containerEdits: {}
kind: nvidia.com/gpu
nothing:
"""

_WORDS = st.text("abcXYZ019 ./:_=-#'\"\\é", max_size=12)
_VALUES = st.recursive(
    _WORDS | st.integers(-1000, 1000) | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_WORDS.filter(bool), inner, max_size=3),
    max_leaves=12,
)


def test_what_nvidia_ctk_writes():
    assert yaml_text.parse(NVIDIA) == yaml.safe_load(NVIDIA)


@given(st.dictionaries(_WORDS.filter(bool), _VALUES, max_size=4))
def test_reads_what_programs_write_or_leaves_it_alone(value):
    text = yaml.safe_dump(value, width=10_000, allow_unicode=True)
    try:
        found = yaml_text.parse(text)
    except ValueError:
        return
    assert found == value


@given(_VALUES)
def test_reads_json(value):
    assert yaml_text.parse(json.dumps(value)) == value


@pytest.mark.parametrize(
    "text", ["a: |\n  x\n", "a: b\n  c: d\n", "a: &x 1\n", "- a\nb: c\n", "\tx: 1", "a: [1, [b]]", "x\ny", "a: 'x\n"]
)
def test_leaves_the_rest_alone(text):
    with pytest.raises(ValueError, match="not read"):
        yaml_text.parse(text)
