import { describe, expect, it } from 'vitest';

import { parseModelConfig } from './config.ts';
import { cosineSine, exponential, logarithm } from './elementary.ts';
import { createEngine } from './engine.ts';
import { createRopeTable } from './weights.ts';

describe('elementary functions', () => {
  it('agree with the library to rounding', () => {
    for (let index = -2000; index <= 2000; index++) {
      const x = index * 0.0173;
      expect(Math.abs(exponential(x) / Math.exp(x) - 1)).toBeLessThan(1e-14);
      expect(Math.abs(logarithm(Math.exp(x)) - x)).toBeLessThan(2e-14 * Math.max(1, Math.abs(x)));
    }
    for (let index = 0; index < 4000; index++) {
      const x = index * 31.4159 + index * index * 1e-5;
      const [cosine, sine] = cosineSine(x);
      // The argument itself is known to half a unit in its last place: 1.5e-11 at 130,000.
      expect(Math.abs(cosine - Math.cos(x))).toBeLessThan(1e-11);
      expect(Math.abs(sine - Math.sin(x))).toBeLessThan(1e-11);
    }
  });

  it('are exact where exactness is promised', () => {
    expect([exponential(0), logarithm(1), ...cosineSine(0)]).toEqual([1, 0, 1, 0]);
  });
});

describe('the rotation table', () => {
  const json = {
    model_type: 'llama',
    hidden_size: 128,
    intermediate_size: 8,
    num_hidden_layers: 1,
    num_attention_heads: 1,
    vocab_size: 8,
    max_position_embeddings: 4096,
    rms_norm_eps: 1e-5,
    rope_theta: 500000,
    rope_scaling: {
      rope_type: 'llama3',
      factor: 8,
      low_freq_factor: 1,
      high_freq_factor: 4,
      original_max_position_embeddings: 1024,
    },
  };

  it('has the angles of position times theta^(-2i/d), with the bands of llama3 scaling', async () => {
    const engine = await createEngine({ build: 'plain', threads: 1 });
    const { cosines, sines } = createRopeTable(engine, parseModelConfig(json), 300);
    const bands = new Set<string>();
    for (let index = 0; index < 64; index++) {
      const plain = 500000 ** (-index / 64);
      const wavelength = (2 * Math.PI) / plain;
      let frequency = plain;
      let band = 'kept';
      if (wavelength > 1024) [frequency, band] = [plain / 8, 'divided'];
      else if (wavelength >= 1024 / 4) {
        const smooth = (1024 / wavelength - 1) / 3;
        [frequency, band] = [((1 - smooth) * plain) / 8 + smooth * plain, 'blended'];
      }
      bands.add(band);
      for (const position of [0, 1, 299]) {
        expect(engine.f32(cosines, 300 * 64)[position * 64 + index]).toBeCloseTo(Math.cos(position * frequency), 6);
        expect(engine.f32(sines, 300 * 64)[position * 64 + index]).toBeCloseTo(Math.sin(position * frequency), 6);
      }
    }
    expect([...bands]).toEqual(['kept', 'blended', 'divided']);
    await engine.close();
  });
});
