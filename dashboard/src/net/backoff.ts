const FIRST_MS = 500;
const LONGEST_MS = 15_000;

/**
 * Milliseconds to wait before the attempt after `failures` failed ones.
 * Half of it is chance, so that a restarted server doesn't meet all its clients in one instant.
 */
export function backoff(failures: number, random: () => number = Math.random): number {
  const ceiling = Math.min(LONGEST_MS, FIRST_MS * 2 ** Math.min(failures, 10));
  return Math.round(ceiling / 2 + (ceiling / 2) * random());
}
