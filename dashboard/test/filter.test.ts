import { describe, expect, it, vi } from "vitest";
import { FilterBox } from "../src/ui/filter";

function box(): { filter: FilterBox; input: HTMLInputElement; asked: ReturnType<typeof vi.fn> } {
  const asked = vi.fn();
  const filter = new FilterBox("by_city", asked);
  const input = filter.root.querySelector("input");
  if (input === null) throw new Error("there is no input");
  return { filter, input, asked };
}

function type(input: HTMLInputElement, text: string): void {
  input.value = text;
  input.dispatchEvent(new Event("input"));
}

describe("the filter input", () => {
  it("keeps the text that the user types when the server reports the filter in effect", () => {
    const { filter, input, asked } = box();
    type(input, "city = 'Bern'");
    filter.show("", null);
    expect(input.value).toBe("city = 'Bern'");
    filter.root.dispatchEvent(new Event("submit", { cancelable: true }));
    expect(asked).toHaveBeenCalledWith("city = 'Bern'");
  });

  it("shows the filter in effect after the user has sent one", () => {
    const { filter, input } = box();
    type(input, " city = 'Bern' ");
    filter.root.dispatchEvent(new Event("submit", { cancelable: true }));
    filter.show("city = 'Bern'", null);
    expect(input.value).toBe("city = 'Bern'");
  });

  it("keeps a refused filter for the user to correct", () => {
    const { filter, input } = box();
    type(input, "cty = 1");
    filter.root.dispatchEvent(new Event("submit", { cancelable: true }));
    filter.show("", "there is no column cty");
    expect(input.value).toBe("cty = 1");
    expect(filter.root.querySelector(".problem")?.textContent).toBe("there is no column cty");
  });
});
