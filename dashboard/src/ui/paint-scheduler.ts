/** A registered part of the page. */
interface Job {
  readonly paint: (now: number) => void;
  readonly every: number;
  dirty: boolean;
  next: number;
}

/** The handle of a registered part. `requestPaint` is cheap: it may be called for every message. */
export interface Part {
  readonly requestPaint: () => void;
  readonly stop: () => void;
}

const FRAME_BUDGET_MS = 8;
/** A part that takes 5 ms to draw waits at least 60 ms, so that no part uses more than a twelfth of the time. */
const REST_FACTOR = 12;

/**
 * Draws changed parts at most once per animation frame, for any number of messages in between.
 * A hidden tab gets no frames and draws nothing; it draws the newest state when it is shown.
 */
export class PaintScheduler {
  private jobs: Job[] = [];
  private running = false;
  private firstJob = 0;

  /** Registers a part of the page. */
  add(paint: (now: number) => void, every = 0): Part {
    const job: Job = { paint, every, dirty: false, next: 0 };
    this.jobs.push(job);
    return {
      requestPaint: () => {
        job.dirty = true;
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
    // Each frame starts at another job, so that a busy first card does not starve the last.
    const count = this.jobs.length;
    this.firstJob = (this.firstJob + 1) % Math.max(1, count);
    for (let index = 0; index < count; index++) {
      const job = this.jobs[(index + this.firstJob) % count];
      if (job?.dirty !== true) continue;
      const start = performance.now();
      if (now < job.next || start - began > FRAME_BUDGET_MS) {
        waiting = true;
        continue;
      }
      job.dirty = false;
      job.paint(now);
      job.next = now + Math.max(job.every, (performance.now() - start) * REST_FACTOR);
    }
    this.running = waiting || this.jobs.some((job) => job.dirty);
    if (this.running) this.run();
  }
}
