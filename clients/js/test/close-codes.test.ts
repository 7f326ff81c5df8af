import { expect, it } from "vitest";
import { reactionTo } from "../src/close-codes.js";

it.each([
  [1001, "at once"],
  [1012, "at once"],
  [4001, "at once"],
  [1006, "later"],
  [4008, "later"],
  [4499, "later"],
  [4500, "never"],
  [4503, "never"],
  [4999, "never"],
])("after close code %i a client connects again %s", (code, reaction) => {
  expect(reactionTo(code)).toBe(reaction);
});
