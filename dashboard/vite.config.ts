import { defineConfig } from "vitest/config";

// `npm run dev` shows a running system, or the stand-in of dev/standin.mjs.
const serve = process.env.MILLSTREAM_SERVE ?? "http://127.0.0.1:8500";

export default defineConfig({
  base: "./",
  build: {
    outDir: "../src/millstream/serve/static",
    emptyOutDir: true,
    target: "es2022",
    // A data: URL would need a hole in the content security policy.
    assetsInlineLimit: 0,
    license: { fileName: "licenses.md" },
  },
  server: { proxy: { "/v1": { target: serve, ws: true } } },
  test: { environment: "happy-dom", include: ["test/**/*.test.ts"] },
});
