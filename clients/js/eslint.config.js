import js from "@eslint/js";
import globals from "globals";
import tseslint from "typescript-eslint";

export default tseslint.config(
  { ignores: ["node_modules/", "dist/"] },
  js.configs.recommended,
  {
    files: ["**/*.ts"],
    extends: [...tseslint.configs.strictTypeChecked, ...tseslint.configs.stylisticTypeChecked],
    languageOptions: { parserOptions: { projectService: true, tsconfigRootDir: import.meta.dirname } },
    rules: { "@typescript-eslint/restrict-template-expressions": ["error", { allowNumber: true }] },
  },
  {
    files: ["src/**/*.ts"],
    rules: {
      // The package also runs in browsers, which have none of these.
      "no-restricted-globals": ["error", "process", "Buffer", "global", "setImmediate", "require"],
      "no-restricted-imports": ["error", { patterns: ["node:*"] }],
    },
  },
  { files: ["**/*.js"], languageOptions: { globals: globals.node } },
);
