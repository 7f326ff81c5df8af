import { describe, expect, it, vi } from "vitest";
import { FilterBox } from "../src/ui/filter";

function box(): { filter: FilterBox; input: HTMLInputElement; onFilter: ReturnType<typeof vi.fn> } {
  const onFilter = vi.fn();
  const filter = new FilterBox("by_city", onFilter);
  const input = filter.root.querySelector("input");
  if (input === null) throw new Error("there is no input");
  return { filter, input, onFilter };
}

function type(input: HTMLInputElement, text: string): void {
  input.value = text;
  input.dispatchEvent(new Event("input"));
}

describe("the filter input", () => {
  it("keeps the text that the user types when the server reports the filter in effect", () => {
    const { filter, input, onFilter } = box();
    type(input, "city = 'Bern'");
    filter.show("", null);
    expect(input.value).toBe("city = 'Bern'");
    filter.root.dispatchEvent(new Event("submit", { cancelable: true }));
    expect(onFilter).toHaveBeenCalledWith("city = 'Bern'");
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
