import { defineConfig } from "vitest/config";

// The environment is Node: a test fails if the package uses the DOM.
export default defineConfig({ test: { environment: "node", include: ["test/**/*.test.ts"] } });
