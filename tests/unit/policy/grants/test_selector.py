import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.errors import UsageError
from gpushare.policy.grants.selector import NAMES, facts, matches, parse, version

GIB = 1 << 30
H200 = facts(
    {"cuda_compute_capability": "9.0", "architecture": "Hopper", "driver_version": "615.10.2", "numa_node": "1"},
    memory=141 * GIB,
    index=0,
    product="NVIDIA H200",
)


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("memory>=40Gi && arch=='Hopper'", True),
        ("memory>=40Gi&&arch=='Ampere'", False),
        ("arch in ('Ampere', \"Hopper\")", True),
        ("compute_capability >= 9.0", True),
        ("cc >= 9", True),
        ("cc < 8.6 || driver_version > 600", True),
        ("driver_version > 615.9", True),
        ("!(numa==1)", False),
        ("!numa==0 && index==0", True),
        ("memory < 150994944000 || index in (3,4)", False),
        ("pcie_root == 'pci0000:3a'", False),
        ("!(pcie_root == 'pci0000:3a')", True),
        ("pcie_root != 'pci0000:3a'", False),
        ("product != 'NVIDIA A100'", True),
        ("index == 1 || index == 0 && memory > 200Gi", False),
        ("(index == 1 || index == 0) && memory > 100Gi", True),
    ],
)
def test_what_a_device_is(text, fits):
    assert matches(parse(text), H200) is fits


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "column 1: the end where there should be a name"),
        ("memory", "column 7: the end where there should be ==, !="),
        ("memory >= 'much'", "column 11: 'much' where there should be a size"),
        ("memory >= 40Gi &", "column 16"),
        ("memory >= 40Gi arch == 'x'", "column 16: 'arch' where there should be &&, || or the end"),
        ("arch >= 'Hopper'", "column 6: architecture is a text"),
        ("arch == Hopper", "column 9: 'Hopper' where there should be a text in quotes"),
        ("colour == 'red'", "column 1: 'colour' where there should be a name"),
        ("(memory > 1Gi", r"column 14: the end where there should be \)"),
        ("index in 3", r"column 10: '3' where there should be \("),
        ("index in (3 4)", r"column 13: '4' where there should be , or \)"),
        ("index == 3.5", "a whole number"),
        ("(" * 30 + "index==1" + ")" * 30, "deeper than 16 levels"),
        ("!" * 30 + "index==1", "deeper than 16 levels"),
        ("index==1 || " * 60 + "index==1", "characters: give at most 512"),
    ],
)
def test_a_mistake_is_reported_with_its_column(text, message):
    with pytest.raises(UsageError, match=message):
        parse(text)


@given(st.text(max_size=80) | st.text("memory archin<>=!&|()'\"0123456789Gi., ", max_size=60))
def test_hostile_text_is_read_or_refused(text):
    try:
        matches(parse(text), H200)
    except UsageError as error:
        assert "selector" in str(error)


DEVICES = st.fixed_dictionaries(
    {},
    optional={"index": st.integers(0, 3), "numa_node": st.integers(0, 1), "architecture": st.sampled_from(["a", "b"])},
)
LEAVES = st.one_of(
    st.tuples(
        st.sampled_from(["index", "numa_node"]), st.sampled_from(["==", "!=", "<", "<=", ">", ">="]), st.integers(0, 3)
    ),
    st.tuples(st.just("architecture"), st.sampled_from(["==", "!="]), st.sampled_from(["a", "b"])),
)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.tuples(st.sampled_from(["&&", "||"]), inner, inner) | st.tuples(st.just("!"), inner),
    max_leaves=8,
)


def written(tree):
    if tree[0] == "!":
        return f"!({written(tree[1])})"
    if tree[0] in ("&&", "||"):
        return f"({written(tree[1])} {tree[0]} {written(tree[2])})"
    return f"{tree[0]} {tree[1]} {tree[2]!r}"


def judged(tree, device):
    """The selector's value as Python evaluates it."""
    if tree[0] == "!":
        return not judged(tree[1], device)
    if tree[0] in ("&&", "||"):
        sides = [judged(tree[1], device), judged(tree[2], device)]
        return all(sides) if tree[0] == "&&" else any(sides)
    return tree[0] in device and bool(eval(f"{device[tree[0]]!r} {tree[1]} {tree[2]!r}"))


@given(TREES, DEVICES)
def test_it_means_what_python_would_say(tree, device):
    assert matches(parse(written(tree)), device) is judged(tree, device)


def test_versions_are_numbers():
    assert version("10.0") == version("10") > version("9.9")
    assert version("1.2.3.4.5") is version("x") is version("") is None
    assert set(H200) <= set(NAMES)
