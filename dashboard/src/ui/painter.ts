/** A part of the page that redraws itself when told that its data moved. */
interface Job {
  readonly paint: (now: number) => void;
  readonly every: number;
  wanted: boolean;
  next: number;
}

/** How the owner of a part speaks to the painter. `ask` costs nothing, however often it is called. */
export interface Part {
  readonly ask: () => void;
  readonly stop: () => void;
}

const FRAME_BUDGET_MS = 8;
/** A part that takes 5 ms to draw waits at least 60 ms: no part gets more than a twelfth of the time. */
const REST = 12;

/**
 * Draws what changed, once per animation frame at most, however many messages came in between.
 * A hidden tab gets no frames, so it does no work at all; it draws the newest state when shown.
 */
export class Painter {
  private jobs: Job[] = [];
  private running = false;
  private turn = 0;

  /** Registers a part of the page. */
  add(paint: (now: number) => void, every = 0): Part {
    const job: Job = { paint, every, wanted: false, next: 0 };
    this.jobs.push(job);
    return {
      ask: () => {
        job.wanted = true;
        if (!this.running) this.run();
      },
      stop: () => {
        this.jobs = this.jobs.filter((other) => other !== job);
      },
    };
  }

  private run(): void {
    this.running = true;
    requestAnimationFrame((now) => {
      this.frame(now);
    });
  }

  private frame(now: number): void {
    const began = performance.now();
    let waiting = false;
    // Starts at another job each frame: a busy first card must not starve the last.
    const count = this.jobs.length;
    this.turn = (this.turn + 1) % Math.max(1, count);
    for (let index = 0; index < count; index++) {
      const job = this.jobs[(index + this.turn) % count];
      if (job?.wanted !== true) continue;
      const start = performance.now();
      if (now < job.next || start - began > FRAME_BUDGET_MS) {
        waiting = true;
        continue;
      }
      job.wanted = false;
      job.paint(now);
      job.next = now + Math.max(job.every, (performance.now() - start) * REST);
    }
    this.running = waiting || this.jobs.some((job) => job.wanted);
    if (this.running) this.run();
  }
}
