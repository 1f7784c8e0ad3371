// Numbers in readable form.

export const percent = (milli = 0) => `${(milli / 10).toFixed(milli % 10 ? 1 : 0)}%`;

// Rounded to whole percent.
export const about = (milli = 0) => (milli > 0 && milli < 10 ? "<1%" : `${Math.round(milli / 10)}%`);

export function size(bytes = 0) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (bytes >= 1024 && unit < units.length - 1) {
    bytes /= 1024;
    unit += 1;
  }
  return `${Number.isInteger(bytes) ? bytes : bytes.toFixed(bytes < 10 ? 2 : 1)} ${units[unit]}`;
}

export function duration(ns = 0) {
  const seconds = ns / 1e9;
  if (seconds < 1e-3) return `${(seconds * 1e6).toFixed(0)} µs`;
  if (seconds < 1) return `${(seconds * 1e3).toFixed(seconds < 0.01 ? 2 : 1)} ms`;
  if (seconds < 120) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} d`;
}

export const age = (ns) => (ns ? duration(Math.max(0, Date.now() * 1e6 - ns)) : "");

export const clock = (ns) => new Date(ns / 1e6).toLocaleTimeString([], { hour12: false });

export const count = (number, word) => `${number} ${word}${number === 1 ? "" : "s"}`;
