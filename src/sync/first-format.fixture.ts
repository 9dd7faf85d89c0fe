/**
 * Three versions in the first form that Hone wrote, kept as they were: plain XOR in zstd, no sizes or checksums of whole files, no
 * time of publication. Version 1 is a delta on the boot model, 2 an anchor under its second name, 3 a delta on it.
 */
import type { TensorPlace } from './tensor-place.ts';

const SHAPES: readonly (readonly [name: string, shape: readonly number[], elements: number])[] = [
  ['model.embed_tokens.weight', [6, 4], 24],
  ['model.norm.weight', [5], 5],
];

/** What version `version` holds; 0 = the boot model. */
export function firstFormatWeights(version: number): Map<string, TensorPlace> {
  return new Map(
    SHAPES.map(([name, shape, count]) => {
      const elements = Uint16Array.from(
        { length: count },
        (_, index) => index * 257 + (name !== 'model.norm.weight' && index % 3 === 0 ? version * 11 : 0),
      );
      return [name, { dtype: 'BF16', shape, place: { kind: 'memory', bytes: new Uint8Array(elements.buffer) } }];
    }),
  );
}

/** Key and base64 of each object. */
export const FIRST_FORMAT_OBJECTS: readonly (readonly [key: string, base64: string])[] = [
  [
    'run/weight_v000001/model-00001-of-00001.safetensors',
    'oAAAAAAAAAB7Il9fbWV0YWRhdGFfXyI6eyJtb2RlbC5lbWJlZF90b2tlbnMud2VpZ2h0IjoiYzVhNTk2YTBkMDEwOTAyMzA3ZTI3NzVmMGVjYzU5YjAifSwibW9kZWwuZW1iZWRfdG9rZW5zLndlaWdodCI6eyJkdHlwZSI6IlU4Iiwic2hhcGUiOlszOV0sImRhdGFfb2Zmc2V0cyI6WzAsMzldfX0gKLUv/SAw9QAAkAsAAAAAAA0XHRsVDzUAAAAAAAYEAkDAAQYE3BQj',
  ],
  [
    'run/weight_v000001/model.safetensors.index.json',
    'ewogICJtZXRhZGF0YSI6IHsKICAgICJ0b3RhbF9zaXplIjogMzksCiAgICAidmVyc2lvbiI6ICIwMDAwMDEiLAogICAgImJhc2VfdmVyc2lvbiI6ICIwMDAwMDAiLAogICAgImRlbHRhX2VuY29kaW5nIjogInhvciIsCiAgICAiY29tcHJlc3Npb25fZm9ybWF0IjogInpzdGQiLAogICAgImNoZWNrc3VtX2Zvcm1hdCI6ICJ4eGgzLTEyOCIsCiAgICAiaW1hZ2VfY2hlY2tzdW0iOiAiZThlZmY4ZjMwODJiODJiN2YyMzFjYWQ3ZTc4Y2RhZTMiCiAgfSwKICAid2VpZ2h0X21hcCI6IHsKICAgICJtb2RlbC5lbWJlZF90b2tlbnMud2VpZ2h0IjogIm1vZGVsLTAwMDAxLW9mLTAwMDAxLnNhZmV0ZW5zb3JzIgogIH0KfQo=',
  ],
  [
    'run/weight_v000002-r1/model-00001-of-00001.safetensors',
    'KAEAAAAAAAB7Il9fbWV0YWRhdGFfXyI6eyJtb2RlbC5lbWJlZF90b2tlbnMud2VpZ2h0IjoiY2MzNWQyODUzM2JhZDgxOTMxN2U1OGRhNmJjM2Y1YTIiLCJtb2RlbC5ub3JtLndlaWdodCI6ImVjZDEyNTcwZjc3MDhhOWZmMzAyY2ZjOGZlYjYyNTNkIn0sIm1vZGVsLmVtYmVkX3Rva2Vucy53ZWlnaHQiOnsiZHR5cGUiOiJCRjE2Iiwic2hhcGUiOls2LDRdLCJkYXRhX29mZnNldHMiOlswLDQ4XX0sIm1vZGVsLm5vcm0ud2VpZ2h0Ijp7ImR0eXBlIjoiQkYxNiIsInNoYXBlIjpbNV0sImRhdGFfb2Zmc2V0cyI6WzQ4LDU4XX19ICAgICAgIBYAAQECAhkDBAQFBRwGBwcICB8JCgoLCyIMDQ0ODiUPEBARESgSExMUFCsVFhYXFwAAAQECAgMDBAQ=',
  ],
  [
    'run/weight_v000002-r1/model.safetensors.index.json',
    'ewogICJtZXRhZGF0YSI6IHsKICAgICJ0b3RhbF9zaXplIjogNTgsCiAgICAidmVyc2lvbiI6ICIwMDAwMDIiLAogICAgImNoZWNrc3VtX2Zvcm1hdCI6ICJ4eGgzLTEyOCIsCiAgICAiaW1hZ2VfY2hlY2tzdW0iOiAiYWE4ZmRmYmIzMTc5ZWMyODY4ZjRmOWMzOTlhMDkzNzciCiAgfSwKICAid2VpZ2h0X21hcCI6IHsKICAgICJtb2RlbC5lbWJlZF90b2tlbnMud2VpZ2h0IjogIm1vZGVsLTAwMDAxLW9mLTAwMDAxLnNhZmV0ZW5zb3JzIiwKICAgICJtb2RlbC5ub3JtLndlaWdodCI6ICJtb2RlbC0wMDAwMS1vZi0wMDAwMS5zYWZldGVuc29ycyIKICB9Cn0K',
  ],
  [
    'run/weight_v000003/model-00001-of-00001.safetensors',
    'oAAAAAAAAAB7Il9fbWV0YWRhdGFfXyI6eyJtb2RlbC5lbWJlZF90b2tlbnMud2VpZ2h0IjoiMDAwYTYzZWU1ZjZmMDE4MGY3ZTFiMmU2MDJlYzAzMzgifSwibW9kZWwuZW1iZWRfdG9rZW5zLndlaWdodCI6eyJkdHlwZSI6IlU4Iiwic2hhcGUiOls0M10sImRhdGFfb2Zmc2V0cyI6WzAsNDNdfX0gKLUv/SAwFQEAuDcAAAAAAD0AAAAAADs1DxUbHQAAAAAABQQCQMABBoSULw==',
  ],
  [
    'run/weight_v000003/model.safetensors.index.json',
    'ewogICJtZXRhZGF0YSI6IHsKICAgICJ0b3RhbF9zaXplIjogNDMsCiAgICAidmVyc2lvbiI6ICIwMDAwMDMiLAogICAgImJhc2VfdmVyc2lvbiI6ICIwMDAwMDIiLAogICAgImJhc2VfZGlyZWN0b3J5IjogIndlaWdodF92MDAwMDAyLXIxIiwKICAgICJkZWx0YV9lbmNvZGluZyI6ICJ4b3IiLAogICAgImNvbXByZXNzaW9uX2Zvcm1hdCI6ICJ6c3RkIiwKICAgICJjaGVja3N1bV9mb3JtYXQiOiAieHhoMy0xMjgiLAogICAgImltYWdlX2NoZWNrc3VtIjogImU4YmNiNGUzMmIzNTc5Y2E5YzNjY2ViZTRhNmMxY2U3IgogIH0sCiAgIndlaWdodF9tYXAiOiB7CiAgICAibW9kZWwuZW1iZWRfdG9rZW5zLndlaWdodCI6ICJtb2RlbC0wMDAwMS1vZi0wMDAwMS5zYWZldGVuc29ycyIKICB9Cn0K',
  ],
];
