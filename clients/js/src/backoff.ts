const FIRST_MS = 500;
const LONGEST_MS = 15_000;

/**
 * Milliseconds to wait before the next attempt, after `failures` failed ones.
 * Half of the time is random, so that clients do not all return to a restarted server at once.
 */
export function backoff(failures: number, random: () => number = Math.random): number {
  const ceiling = Math.min(LONGEST_MS, FIRST_MS * 2 ** Math.min(failures, 10));
  return Math.round(ceiling / 2 + (ceiling / 2) * random());
}
