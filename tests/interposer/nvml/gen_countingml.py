"""gen_countingml.py OUT: generates an NVML library whose functions all succeed and count their calls, in the order of
the table."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "native" / "api"))
import table

OWN_BODY = {
    "nvmlDeviceGetUUID": "(void *device, char *text) { calls[{i}]++; strcpy(text, UUID); return device ? 0 : 2; }",
    "nvmlDeviceGetHandleByIndex_v2": "(unsigned index, void **device) { calls[{i}]++; *device = calls; return 0; }",
    "nvmlDeviceGetCount_v2": "(unsigned *count) { calls[{i}]++; *count = 1; return 0; }",
    "nvmlDeviceGetHandleByUUID": "(char *uuid, void **device) { calls[{i}]++; *device = calls; return 0; }",
    "nvmlDeviceGetFieldValues": """(void *device, int count, struct field *values) {
  calls[{i}]++;
  for (int n = 0; n < count; n++) { values[n].result = 0; values[n].value = 1000 + values[n].id; }
  return device ? 0 : 2;
}""",
    "nvmlGpmQueryDeviceSupport": """(void *device, unsigned *support) {
  calls[{i}]++;
  support[1] = 1;
  return device ? 0 : 2;
}""",
}
HEAD = """
#include <string.h>
struct field { unsigned id, scope; long long at, took; unsigned type; int result; unsigned long long value; };
unsigned calls[COUNT];
"""


def main() -> None:
    uuid = "GPU-" + "-".join("0123456789abcdef" * 2)  # the positions of the separators do not matter
    lines = [f"#define COUNT {len(table.nvml())}", f'#define UUID "{uuid}"', HEAD]
    for i, name in enumerate(table.nvml()):
        body = OWN_BODY.get(name, "(void) { calls[{i}]++; return 0; }").replace("{i}", str(i))
        lines.append(f"int {name}{body}")
    Path(sys.argv[1]).write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
