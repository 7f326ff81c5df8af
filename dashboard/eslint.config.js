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
    rules: {
      "@typescript-eslint/restrict-template-expressions": ["error", { allowNumber: true }],
      // Text of events must never become HTML: elements are built, and text is set by textContent.
      "no-restricted-properties": [
        "error",
        { property: "innerHTML", message: "Text of events is never HTML: build elements." },
        { property: "outerHTML", message: "Text of events is never HTML: build elements." },
        { property: "insertAdjacentHTML", message: "Text of events is never HTML: build elements." },
      ],
      "no-restricted-syntax": [
        "error",
        {
          selector: "CallExpression[callee.property.name='setAttribute'] > Literal[value='style']",
          message: "The content security policy refuses style attributes: set element.style.",
        },
      ],
    },
  },
  { files: ["**/*.{js,mjs}"], languageOptions: { globals: globals.node } },
);
