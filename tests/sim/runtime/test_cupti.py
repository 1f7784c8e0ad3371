"""The simulated CUPTI: profilers find it, and every call reports that the device cannot be traced."""

import ctypes
import subprocess
from pathlib import Path

import pytest

from gpushare.paths import SIM_LIB_DIR

NAMES = Path(__file__).parents[3] / "native/api/cupti.txt"


@pytest.mark.parametrize(("major", "version"), [(12, 26), (13, 130202)])
def test_every_function_is_not_supported(major, version):
    library = f"libcupti.so.{major}"
    names = [line for line in NAMES.read_text().splitlines() if not line.startswith("#")]
    lines = subprocess.check_output(["nm", "-D", "--defined-only", SIM_LIB_DIR / library], text=True).splitlines()
    assert {line.split()[2] for line in lines if line.split()[1] in "TW"} == {f"{name}@@{library}" for name in names}
    cupti = ctypes.CDLL(str(SIM_LIB_DIR / library))
    number, text, now = ctypes.c_uint32(), ctypes.c_char_p(), ctypes.c_uint64()
    assert cupti.cuptiGetVersion(ctypes.byref(number)) == 0 and number.value == version
    assert cupti.cuptiGetResultString(27, ctypes.byref(text)) == 0 and b"simulated" in text.value
    assert cupti.cuptiGetTimestamp(ctypes.byref(now)) == 0 and now.value > 10**18
    assert [cupti.cuptiSubscribe(None, None, None), cupti.cuptiActivityEnable(3)] == [27, 27]
    assert cupti.cuptiGetVersion(None) == cupti.cuptiGetTimestamp(None) == 1
    assert cupti.cuptiFinalize() == cupti.cuptiActivityFlushAll(0) == 0
