/* Field values: the real ones, except those that reveal how busy other tenants are. */
#include "interposer/nvml/ml.h"

/* Numbers from the documented interface. All of them count traffic of a link or work of a unit of the whole device. */
static const struct {
  unsigned int first, last;
} LOAD[] = {
    {60, 73},   /* NVLINK_BANDWIDTH_C0_L0 ... C1_TOTAL */
    {120, 131}, /* NVLINK_BANDWIDTH_C0_L6 ... C1_L11 */
    {138, 141}, /* NVLINK_THROUGHPUT_DATA_TX ... RAW_RX */
    {197, 198}, /* PCIE_COUNT_TX_BYTES, PCIE_COUNT_RX_BYTES */
    {201, 204}, /* NVLINK_COUNT_XMIT_PACKETS ... RCV_BYTES */
    {294, 295}, /* NVLINK_PLR_XMIT_BLOCKS, NVLINK_PLR_XMIT_RETRY_BLOCKS */
    {297, 297}  /* MMA_STALL_PERCENT */
};

static bool tells_load(unsigned int field) {
  for (unsigned int i = 0; i < sizeof LOAD / sizeof *LOAD; i++)
    if (field >= LOAD[i].first && field <= LOAD[i].last)
      return true;
  return false;
}

GS_ML(nvmlDeviceGetFieldValues, (nvmlDevice_t device, int count, nvmlFieldValue_t *values)) {
  nvmlReturn_t result = GS_ML_REAL(nvmlDeviceGetFieldValues)(device, count, values);
  if (result != NVML_SUCCESS || !values || !gs_ml_view())
    return result;
  for (int i = 0; i < count; i++) {
    if (!tells_load(values[i].fieldId))
      continue;
    values[i].nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
    values[i].value.ullVal = 0;
    values[i].latencyUsec = 0;
  }
  return result;
}
