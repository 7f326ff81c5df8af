import { describe, expect, it, vi } from "vitest";
import { FilterBox } from "../src/ui/filter";

function box(): { filter: FilterBox; input: HTMLInputElement; asked: ReturnType<typeof vi.fn> } {
  const asked = vi.fn();
  const filter = new FilterBox("by_city", asked);
  const input = filter.root.querySelector("input");
  if (input === null) throw new Error("there is no box");
  return { filter, input, asked };
}

function type(input: HTMLInputElement, text: string): void {
  input.value = text;
  input.dispatchEvent(new Event("input"));
}

describe("the box for a filter", () => {
  it("keeps what is being typed when the server says which filter holds", () => {
    const { filter, input, asked } = box();
    type(input, "city = 'Bern'");
    filter.show("", null);
    expect(input.value).toBe("city = 'Bern'");
    filter.root.dispatchEvent(new Event("submit", { cancelable: true }));
    expect(asked).toHaveBeenCalledWith("city = 'Bern'");
  });

  it("shows the filter that holds once the user has sent theirs", () => {
    const { filter, input } = box();
    type(input, " city = 'Bern' ");
    filter.root.dispatchEvent(new Event("submit", { cancelable: true }));
    filter.show("city = 'Bern'", null);
    expect(input.value).toBe("city = 'Bern'");
  });

  it("leaves what the server refused for the user to mend", () => {
    const { filter, input } = box();
    type(input, "cty = 1");
    filter.root.dispatchEvent(new Event("submit", { cancelable: true }));
    filter.show("", "there is no column cty");
    expect(input.value).toBe("cty = 1");
    expect(filter.root.querySelector(".problem")?.textContent).toBe("there is no column cty");
  });
});
