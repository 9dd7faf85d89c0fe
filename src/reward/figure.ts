/** How a measured number stands in a sentence for the user: three digits that count are what its noise leaves. */
export function figure(value: number): string {
  return String(Number(value.toPrecision(3)));
}
