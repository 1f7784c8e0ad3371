"""gpushare.toml: what it may say, and where mistakes are reported."""

import pytest

from gpushare.daemon import config
from gpushare.errors import UsageError


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("# x\nsimulte = 1\n", 2, "unknown field `simulte`"),
        ("ledger_days = 1\n\n[arbiter]\nleas_ms = 1\n", 4, "unknown field `leas_ms`"),
        ("[policy]\nusage_factor = '1'\n", 2, "Expected `float`, got `str`"),
        ("[policy]\nusage_factor = -0.1\n", 2, "policy.usage_factor is -0.1: give 0 to 3"),
        ("[policy]\nusage_factor = 3.1\n", 2, "policy.usage_factor is 3.1: give 0 to 3"),
        ("[policy]\n\nusage_factor = nan\n", 3, "policy.usage_factor is nan: give 0 to 3"),
        ("policy = {usage_factor = 1, usage_half_life_seconds = 0.5}\n", 1,
         "policy.usage_half_life_seconds is 0.5: give 1 to 2678400"),
        ("[policy]\nusage_half_life_seconds = inf\n", 2, "policy.usage_half_life_seconds is inf"),
        ("[memory]\nhost_pool = 0\n", 2, "Expected `str`, got `int`"),
        ("[memory]\nhost_pool = 'half'\n", 2, "memory.host_pool is neither auto, 0 nor a size: memory 'half'"),
        ("[memory]\n\nhost_pool = '-1GiB'\n", 3, "memory.host_pool is neither auto, 0 nor a size"),
        ("[memory]\nhost_pool = '64'\n", 2, "write 64GiB"),
        ("[memory]\nhost_pool = '17TiB'\n", 2, "out of range: give more than 0 and at most 16TiB"),
        ("[memory]\nhost_pol = '1GiB'\n", 2, "unknown field `host_pol`"),
        ("[memory]\nallocation_wait_seconds = 86401\n", 2,
         "memory.allocation_wait_seconds is 86401.0: give 0 to 86400"),
        ("ledger_seconds = 0\n", 1, "ledger_seconds is 0: give 1 to 3600"),
        ("ledger_seconds = 1\nnot toml\n", 2, "Expected"),
    ],
)  # fmt: skip
def test_a_mistake_is_reported_with_its_line(tmp_path, text, line, message):
    path = tmp_path / "gpushare.toml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        config.load(path)
    assert str(caught.value).startswith(f"{path}:{line}: ") and message in str(caught.value)


def test_the_size_of_the_host_pool(tmp_path):
    path = tmp_path / "gpushare.toml"
    for text, size in (("", None), ("auto", None), ("0", 0), (" 0 ", 0), ("1.5GiB", 3 << 29), ("64Gi", 64 << 30)):
        path.write_text(f"[memory]\nhost_pool = '{text}'\n" if text else "")
        assert config.host_pool(config.load(path).memory) == size


def test_a_byte_order_mark_is_read_over(tmp_path):
    path = tmp_path / "gpushare.toml"
    path.write_bytes(b'\xef\xbb\xbfplacement = "pack"\n')
    assert config.load(path).placement == "pack"
    path.write_bytes(b'\xef\xbb\xbfgroup = "a"\nplacement = "binpack"\n')
    with pytest.raises(UsageError, match=r"gpushare.toml:2: Invalid enum value 'binpack'"):
        config.load(path)
    path.write_bytes(b'\xef\xbb\xbfgroup = "a"\nx = "\xe9"\n')
    with pytest.raises(UsageError, match=r"gpushare.toml:2: byte 0xe9 is not UTF-8"):
        config.load(path)


def test_what_is_reported_of_policy(tmp_path):
    path = tmp_path / "gpushare.toml"
    path.write_text("[policy]\nusage_factor = 1.5\nusage_half_life_seconds = 60\n")
    assert config.history(config.load(path).policy).factor == 1.5
    path.write_text("")
    assert config.history(config.load(path).policy).factor == 0


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('listen = "7433"', "not ADDRESS:PORT"),
        ('listen = "0.0.0.0"', "not ADDRESS:PORT"),
        ('listen = "node:7433"', "not ADDRESS:PORT"),
        ('listen = "0.0.0.0:443"', "a port from 1024 on"),
        ('listen = "0.0.0.0:99999"', "a port from 1024 on"),
        ('listen = ":::7433"', "not ADDRESS:PORT"),
        ('listen = "[0.0.0.0]:7433"', "not ADDRESS:PORT"),
        ('host = "a b"', "no name or address"),
        ('carriers = "here"', "not absolute"),
        ('host_memory = "much"', "not a size"),
        ("attachments = 0", "give 1 to 128"),
    ],
)
def test_what_is_wrong_with_remote(tmp_path, line, told):
    file = tmp_path / "gpushare.toml"
    file.write_text(f"[remote]\n{line}\n")
    with pytest.raises(UsageError, match=rf"gpushare.toml:2: .*{told}"):
        config.load(file)


@pytest.mark.parametrize("address", ["", "0.0.0.0:7433", "127.0.0.1:0", "[::]:7433", "[fe80::1]:1024"])
def test_where_the_relay_may_listen(tmp_path, address):
    file = tmp_path / "gpushare.toml"
    file.write_text(f'[remote]\nlisten = "{address}"\nhost_memory = "2GiB"\n')
    found = config.remote(config.load(file).remote)
    assert (found.listen, found.host_memory, found.carriers) == (address, 2 << 30, None)
