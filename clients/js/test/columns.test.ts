import { describe, expect, it } from "vitest";
import { kindOf } from "../src/columns.js";

const WINDOW = "struct<start:timestamp,end:timestamp>";

describe("the kind of a column", () => {
  it("follows from Spark's and from DuckDB's type names", () => {
    const types = ["bigint", "DECIMAL(10,2)", "VARCHAR", "string", WINDOW, 'STRUCT("start" TIMESTAMP, "end" TIMESTAMP)', "TIMESTAMP WITH TIME ZONE", "array<int>", "boolean", "UINTEGER"];
    expect(types.map((type) => kindOf({ name: "c", type }))).toEqual([
      "number", "number", "text", "text", "window", "window", "timestamp", "other", "boolean", "number",
    ]);
  });
});
