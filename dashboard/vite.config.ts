import { defaultClientConditions, defaultServerConditions } from "vite";
import { defineConfig } from "vitest/config";

// The server behind `npm run dev`: a running system, or dev/fake-server.mjs.
const serve = process.env.MILLSTREAM_SERVE ?? "http://127.0.0.1:8500";

export default defineConfig({
  base: "./",
  // Compiles the sources of @millstream/client, so that it needs no build of its own first.
  resolve: { conditions: ["millstream-source", ...defaultClientConditions] },
  ssr: { resolve: { conditions: ["millstream-source", ...defaultServerConditions] } },
  build: {
    outDir: "../src/millstream/serve/static",
    emptyOutDir: true,
    target: "es2022",
    // The content security policy does not allow data: URLs.
    assetsInlineLimit: 0,
    license: { fileName: "licenses.md" },
  },
  server: { proxy: { "/v1": { target: serve, ws: true } } },
  test: { environment: "happy-dom", include: ["test/**/*.test.ts"] },
});
